"""The reward audit names the players that earn too much, and only those."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from ludus import ToolCall, ToolEnvironment, tool
from ludus.check import CheckFinding, reward_audit, run_checks
from ludus.check.reward_audit import RewardAudit
from ludus.check.weak_players import weak_strategies
from ludus.data.tool_schema import ToolSpec

CHECK = "weak players score below the oracle"


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
        ("AnyText", {"random calls", "one repeated call", "the copied prompt"}),
        ("NumberInText", {"the copied prompt"}),
        ("EmptyIsNearlyRight", {"empty arguments"}),
    ],
)
async def test_player_that_earns_too_much_is_named(name: str, guilty: set[str]) -> None:
    found = await audit(name)
    assert found.verdict == "fail" and found.advice
    assert {part.partition(" scored ")[0] for part in found.detail.split("; ")} == guilty


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
    assert found.verdict == "skip" and "random calls 1," in found.detail


@pytest.mark.parametrize("name", ["Unsolved", "OracleOfNothing"])
async def test_without_an_oracle_the_highest_reward_is_the_measure(name: str) -> None:
    found = await audit(name)
    assert found.verdict == "pass" and "max_reward" in found.detail


async def test_scores_are_shown_where_there_is_nothing_to_compare_with() -> None:
    found = await audit("Unrated")
    assert found.verdict == "skip" and "random calls 0.5," in found.detail


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
    lucky = [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    (few,) = RewardAudit("oracle", [1.0] * 8, {"lucky": lucky}).compare()
    assert few.is_undecided and not few.is_clear
    (many,) = RewardAudit("oracle", [1.0] * 128, {"lucky": lucky * 16}).compare()
    assert many.is_clear and not many.is_undecided
    (always,) = RewardAudit("oracle", [1.0] * 8, {"always": [1.0] * 8}).compare()
    assert not always.is_clear and not always.is_undecided


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
    assert "the copied prompt" not in weak_strategies([WALK])
