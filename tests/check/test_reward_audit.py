"""The reward audit names the players that earn too much, and only those."""

from __future__ import annotations

import math
import random
from itertools import islice

import pytest

from ludus import ToolCall, ToolEnvironment, tool
from ludus.check import CheckFinding, reward_audit, run_checks
from ludus.check.reward_audit import RewardAudit
from ludus.check.weak_players import weak_strategies
from ludus.data.tool_schema import ToolSpec

CHECK = "weak players score below the oracle"


@pytest.fixture
def no_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_audit, "SOFT_LIMIT_S", math.inf)
    monkeypatch.setattr(reward_audit, "HARD_LIMIT_S", math.inf)


async def audit(name: str, *, seeds: int = 5) -> CheckFinding:
    report = await run_checks(f"check.test_reward_audit:{name}", seeds=seeds)
    (found,) = [each for each in report.findings if each.check == CHECK]
    return found


class Riddle(ToolEnvironment):
    """Answer with the right number."""

    def reset(self, *, seed: int | None = None) -> str:
        self.number = random.Random(seed).randrange(1000)
        return f"Which number comes after {self.number}?"

    @tool
    def answer(self, text: str) -> str:
        """Answer.

        Args:
            text: The number.
        """
        return self.finish(self.score(text), "Thank you.")

    def score(self, text: str) -> float:
        return float(text == str(self.number + 1))

    def oracle(self) -> ToolCall:
        return ToolCall(name="answer", arguments={"text": str(self.number + 1)})


class AnyText(Riddle):
    """Takes any text for right."""

    def score(self, text: str) -> float:
        return float(bool(text))


class NumberInText(Riddle):
    """Takes a text for right that has the number of the question in it."""

    def score(self, text: str) -> float:
        return float(text == str(self.number + 1) or str(self.number) in text)


class EmptyIsNearlyRight(Riddle):
    """Gives nearly everything for an empty answer."""

    def score(self, text: str) -> float:
        return 0.95 if not text else super().score(text)


class CrashesWhenEmpty(Riddle):
    """Raises for an empty answer."""

    def score(self, text: str) -> float:
        return float(ord(text[0]) < 0) or super().score(text)


class Guess(Riddle):
    """Half of all answers are right, by chance."""

    def reset(self, *, seed: int | None = None) -> str:
        self.luck = random.Random(f"luck {seed}").random()
        return super().reset(seed=seed)

    def score(self, text: str) -> float:
        return super().score(text) or float(self.luck < 0.5)


class Loses(Riddle):
    """Costs one for each wrong answer, and nothing for the right one."""

    max_reward = 0.0

    def score(self, text: str) -> float:
        return super().score(text) - 1.0


class Skewed(Riddle):
    """Asks whether a number is small, which three in four are."""

    def reset(self, *, seed: int | None = None) -> str:
        self.number = random.Random(seed).randrange(1000)
        return f"Is {self.number} below 750? Answer yes or no."

    def score(self, text: str) -> float:
        return float(text == ("yes" if self.number < 750 else "no"))

    def oracle(self) -> ToolCall:
        text = "yes" if self.number < 750 else "no"
        return ToolCall(name="answer", arguments={"text": text})


class Premises(Riddle):
    """Takes its own premises, joined, for a conclusion."""

    def reset(self, *, seed: int | None = None) -> str:
        self.premises = [f"P{seed}", f"Q{seed}"]
        return "What follows from these?\n" + "".join(f"- {each}\n" for each in self.premises)

    def score(self, text: str) -> float:
        return float(all(f"({each})" in text for each in self.premises))

    def oracle(self) -> ToolCall:
        text = " and ".join(f"({each})" for each in self.premises)
        return ToolCall(name="answer", arguments={"text": text})


class Sum(Riddle):
    """Evaluates the formula of an answer, but does not look at its numbers."""

    def reset(self, *, seed: int | None = None) -> str:
        rng = random.Random(seed)
        self.numbers = [rng.randrange(1, 100) for _ in range(3)]
        return "Make {} of {}, {} and {}.".format(sum(self.numbers), *self.numbers)

    def score(self, text: str) -> float:
        parts = text.split(" + ")
        return float(all(map(str.isdigit, parts)) and sum(map(int, parts)) == sum(self.numbers))

    def oracle(self) -> ToolCall:
        text = " + ".join(map(str, self.numbers))
        return ToolCall(name="answer", arguments={"text": text})


class Unpatched(Riddle):
    """A data set of reasoning_gym, with the library's own scorer."""

    data_set = "puzzle24"

    def reset(self, *, seed: int | None = None) -> str:
        from reasoning_gym.factory import create_dataset

        self.dataset = create_dataset(self.data_set, seed=seed, size=1)
        self.entry = self.dataset[0]
        return str(self.entry["question"])

    def score(self, text: str) -> float:
        return float(self.dataset.score_answer(text, self.entry))

    def oracle(self) -> ToolCall:
        return ToolCall(name="answer", arguments={"text": self.entry["answer"]})


class UnpatchedCountdown(Unpatched):
    """The same, where each question has its own target."""

    data_set = "countdown"


class Close(Riddle):
    """Gives six tenths for any number."""

    def score(self, text: str) -> float:
        return super().score(text) or 0.6 * text.isdigit()


class Generous(AnyText):
    """Is meant to be so."""

    rewards_any_action = True


class Unsolved(ToolEnvironment):
    """Has no oracle."""

    def reset(self, *, seed: int | None = None) -> str:
        return f"Say something, {seed}."

    @tool
    def say(self, text: str) -> str:
        """Say something.

        Args:
            text: What to say.
        """
        return self.finish(0.5, "Thank you.")


class OracleOfNothing(Unsolved):
    """Has an oracle for other variants only."""

    def oracle(self) -> ToolCall:
        raise NotImplementedError("No oracle for this one.")


class Unrated(Unsolved):
    """Has neither an oracle nor a known highest reward."""

    max_reward = None


class Endless(Riddle):
    """Is solved in more steps than a check plays."""

    @tool
    def answer(self, text: str) -> str:
        """Answer.

        Args:
            text: The number.
        """
        return "Go on."


@pytest.mark.parametrize(
    ("name", "guilty"),
    [
        ("AnyText", {"random calls", "one repeated call", "always 0"}),
        ("NumberInText", {"the copied prompt", "the last line", "the last paragraph"}),
        (
            "EmptyIsNearlyRight",
            {"empty arguments", "all numbers but the last added", "the premises joined"},
        ),
        ("Skewed", {"always yes"}),
        ("Premises", {"the premises joined"}),
        ("Sum", {"the first number", "the largest number"}),
        ("Unpatched", {"always 1*1*3*8", "target out of pi/pi, plus numbers times 0"}),
        ("UnpatchedCountdown", {"target out of pi/pi, plus numbers times 0"}),
    ],
)
@pytest.mark.usefixtures("no_time_limits")
async def test_player_that_earns_too_much_is_named(name: str, guilty: set[str]) -> None:
    found = await audit(name)
    assert found.verdict == "fail" and found.advice
    assert {part.partition(" scored ")[0] for part in found.detail.split("; ")} == guilty


async def test_high_floor_passes_and_is_shown() -> None:
    found = await audit("Close")
    assert found.verdict == "pass" and "always 0 0.6; oracle 1 " in found.detail


@pytest.mark.parametrize("name", ["Riddle", "Guess", "Loses"])
async def test_sound_rewards_pass(name: str) -> None:
    found = await audit(name)
    assert found.verdict == "pass", found.detail


async def test_scores_are_the_same_every_time() -> None:
    first, again = await audit("Guess"), await audit("Guess", seeds=2)
    assert first == again


async def test_crash_of_a_weak_player_is_located() -> None:
    found = await audit("CrashesWhenEmpty")
    assert found.verdict == "fail"
    assert "test_reward_audit.py:" in found.detail and "IndexError" in found.detail


async def test_scores_are_shown_where_any_action_is_rewarded() -> None:
    found = await audit("Generous")
    assert found.verdict == "skip" and "random calls 1;" in found.detail


@pytest.mark.parametrize("name", ["Unsolved", "OracleOfNothing"])
async def test_without_an_oracle_the_highest_reward_is_the_measure(name: str) -> None:
    found = await audit(name)
    assert found.verdict == "pass" and "max_reward" in found.detail


async def test_scores_are_shown_where_there_is_nothing_to_compare_with() -> None:
    found = await audit("Unrated")
    assert found.verdict == "skip" and "random calls 0.5 (8 seeds)" in found.detail


async def test_oracle_that_needs_more_steps_than_a_check_plays_is_not_blamed() -> None:
    report = await run_checks("check.test_reward_audit:Endless")
    *_, oracle, weak = report.findings
    assert (oracle.verdict, weak.verdict) == ("skip", "skip")


async def test_slow_environment_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_audit, "HARD_LIMIT_S", 0.0)
    found = await audit("AnyText")
    assert found.verdict == "skip"


async def test_time_runs_out_after_enough_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_audit, "SOFT_LIMIT_S", 0.0)
    found = await audit("AnyText")
    assert found.verdict == "fail" and "5 seeds" in found.detail


async def test_environment_is_audited_by_its_name() -> None:
    skewed = await reward_audit.audit_environment("check.test_reward_audit:Skewed", seeds=16)
    assert (skewed.reference, skewed.seeds) == ("oracle", 16)
    best = skewed.compare()[0]
    assert best.player == "always yes" and best.tops == 16 * best.mean > 8
    unsolved = await reward_audit.audit_environment("check.test_reward_audit:Unsolved", seeds=8)
    assert unsolved.reference == "max_reward" and unsolved.reference_returns == [1.0] * 8


def unclear_players(reference: list[float], **players: list[float]) -> set[str]:
    audited = RewardAudit("oracle", reference, players)
    return {each.player for each in audited.compare() if not each.is_clear}


def test_margin_is_relative_to_the_scale_of_the_rewards() -> None:
    best = [100.0] * 8
    assert unclear_players(best, near=[95.0] * 8, far=[80.0] * 8) == {"near"}
    # A reference of zero has the scale of what the players lose.
    assert unclear_players([0.0] * 8, near=[-1.0] * 8, far=[-20.0] * 8) == {"near"}
    assert unclear_players([0.0] * 8, same=[0.0] * 8) == {"same"}
    assert unclear_players([1.0] * 8, better=[2.0] * 8) == {"better"}


def test_chance_leaves_a_comparison_undecided() -> None:
    lucky = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    (few,) = RewardAudit("oracle", [1.0] * 8, {"lucky": lucky}).compare()
    assert few.is_undecided and not few.is_clear
    (many,) = RewardAudit("oracle", [1.0] * 128, {"lucky": lucky * 16}).compare()
    assert many.is_clear and not many.is_undecided
    (few,) = RewardAudit("oracle", [1.0] * 8, {"always": [1.0] * 8}).compare()
    assert few.is_undecided and not few.is_clear
    (always,) = RewardAudit("oracle", [1.0] * 32, {"always": [1.0] * 32}).compare()
    assert not always.is_clear and not always.is_undecided


@pytest.mark.parametrize(("tops", "guilty"), [(64, False), (80, False), (84, True), (128, True)])
def test_player_may_be_right_as_often_as_a_coin(tops: int, guilty: bool) -> None:
    returns = [1.0] * tops + [0.0] * (128 - tops)
    (player,) = RewardAudit("oracle", [1.0] * 128, {"yes": returns}).compare()
    assert player.tops == tops and player.tops_most_seeds is guilty
    assert player.is_clear is not guilty


SPEAK = ToolSpec(
    name="speak",
    description="",
    input_schema={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "volume": {"type": "integer", "minimum": 1, "maximum": 9},
            "tone": {"type": "string", "enum": ["high", "low"]},
        },
        "required": ["text", "volume", "tone"],
    },
)
WALK = ToolSpec(name="walk", description="", input_schema={"type": "object", "properties": {}})


def calls(strategy: str, tools: list[ToolSpec], count: int = 4) -> list[ToolCall]:
    play = weak_strategies(tools)[strategy]
    return list(islice(play(tools, "Go home.", random.Random(1)), count))


def test_weak_strategies_do_what_they_are_named_for() -> None:
    tools = [SPEAK, WALK]
    assert len({str(call) for call in calls("random calls", tools, 20)}) > 2
    assert [(call.name, call.arguments) for call in calls("empty arguments", tools, 3)] == [
        ("speak", {"text": "", "note": ""}),
        ("walk", {}),
        ("speak", {"text": "", "note": ""}),
    ]
    first, *others = calls("one repeated call", tools)
    assert others == [first] * 3
    for call in calls("the copied prompt", tools):
        assert call.name == "speak" and 1 <= call.arguments["volume"] <= 9
        assert call.arguments["text"] == call.arguments["note"] == "Go home."
    assert weak_strategies([WALK]).keys() == {
        "random calls",
        "empty arguments",
        "one repeated call",
    }


PROMPT = """Use "up" or `down`.
1. First (P → Q)
2. Then P
Numbers: 3 -1.5 20, such as [up] or [down].

 0 7
 4 X

[[1,2],
 [3,4]]
It ends here: 9"""


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ("always nan", "nan"),
        ("the last line", "It ends here: 9"),
        ("what follows the last colon", "9"),
        ("the first number", "1"),
        ("the smallest number", "-1.5"),
        ("the largest number", "20"),
        ("the premises joined", "(First (P → Q)) ∧ (Then P)"),
        ("the last list item", "Then P"),
        ("the first quotation", "up"),
        ("the last quotation", "down"),
        ("the first brackets", "[up]"),
        ("the last grid", "[[1,2],\n [3,4]]"),
        ("the last grid, all zeros", "[[0,0],\n [0,0]]"),
    ],
)
def test_texts_are_constant_or_taken_from_the_prompt(strategy: str, text: str) -> None:
    play = weak_strategies([SPEAK])[strategy]
    first, second = islice(play([SPEAK], PROMPT, random.Random(1)), 2)
    assert first.arguments["text"] == second.arguments["text"] == text


def test_brackets_of_the_prompt_are_said_in_turn() -> None:
    play = weak_strategies([SPEAK])["the brackets in turn"]
    calls = islice(play([SPEAK], "Say [up] or [down], or [up].", random.Random(1)), 3)
    assert [call.arguments["text"] for call in calls] == ["[up]", "[down]", "[up]"]


def test_numbers_are_given_for_numeric_arguments() -> None:
    bet = ToolSpec(
        name="bet",
        description="",
        input_schema={
            "type": "object",
            "properties": {
                "chips": {"type": "integer"},
                "share": {"type": "number"},
                "side": {"type": "string", "enum": ["A", "B"]},
            },
            "required": ["chips", "share", "side"],
        },
    )
    strategies = weak_strategies([bet])
    assert "always nan" not in strategies and "always yes" not in strategies

    def said(name: str) -> ToolCall:
        return next(strategies[name]([bet], "", random.Random(1)))

    assert (said("always 5").arguments["chips"], said("always 5").arguments["share"]) == (5, 5.0)
    assert said("always B").arguments["side"] == "B"
