"""The collector: many episodes, faults, budgets, and going on where it stood."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from world import Counter, facts, serving

from ludus import State, ToolCall
from ludus.agents.agent import Agent, Player, Reply, Situation
from ludus.agents.human import HumanAgent
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import ScriptedAgent
from ludus.data.episode import Episode, StopReason, Usage
from ludus.data.lines import episodes
from ludus.data.messages import Call, Function, Message
from ludus.errors import (
    BadSetting,
    ConnectFailed,
    ModelBusy,
    ProviderRefuses,
    RequestRefused,
    RunError,
    StoppedEarly,
)
from ludus.rollout import Job, Limits, Outcome, collect
from ludus.rollout.budget import Budget
from ludus.rollout.collector import Collector
from ludus.rollout.reporter import Reporter
from ludus.rollout.tuning import Tuning

COUNTER = "world:Counter"
QUICK = Tuning(retry_pause=0.001, patience=5.0)


def job(spec: str = COUNTER, n: int = 20, **settings: Any) -> Job:
    return Job(spec, episodes=n, **settings)


def read(folder: Path) -> list[Episode]:
    return sorted(episodes(folder / "episodes.jsonl"), key=lambda episode: episode.episode_id)


async def run(out: Path, agent: Agent | None = None, **settings: Any) -> Outcome:
    kept = {name: settings.pop(name) for name in list(settings) if name in _COLLECT}
    return await collect(job(**settings), agent or OracleAgent(), out, **{"tuning": QUICK, **kept})


_COLLECT = ("base_url", "resume", "retry_broken", "tuning", "budget", "reporter", "token")


class Flaky(OracleAgent):
    """Breaks in some episodes, for some attempts."""

    def __init__(self, breaks: Callable[[str, int], Exception | None]) -> None:
        self._breaks = breaks
        self._attempts: dict[str, int] = {}

    async def begin(self, situation: Situation) -> Player:
        key = f"{situation.seed}/{situation.member}"
        self._attempts[key] = self._attempts.get(key, 0) + 1
        error = self._breaks(key, self._attempts[key])
        if error is not None:
            raise error
        return await super().begin(situation)


async def test_every_planned_episode_is_there_once(tmp_path: Path) -> None:
    outcome = await run(tmp_path / "run", n=50)
    found = read(tmp_path / "run")
    assert [episode.episode_id[-6:] for episode in found] == [f"{i:06d}" for i in range(50)]
    assert {episode.reward for episode in found} == {1.0}
    assert outcome.summary["complete"]
    assert outcome.summary["mean_reward"] == 1.0
    assert json.loads((tmp_path / "run/summary.json").read_text())["episodes"] == 50


async def test_concurrency_changes_nothing_in_the_episodes(tmp_path: Path) -> None:
    await run(tmp_path / "one", n=30, tuning=Tuning(concurrency=1))
    await run(tmp_path / "many", n=30, tuning=Tuning(concurrency=30))
    assert [facts(e) for e in read(tmp_path / "one")] == [facts(e) for e in read(tmp_path / "many")]


async def test_a_finished_run_is_not_played_again(tmp_path: Path) -> None:
    await run(tmp_path / "run")
    before = (tmp_path / "run/episodes.jsonl").read_bytes()
    outcome = await run(tmp_path / "run")
    assert outcome.fresh == 0
    assert (tmp_path / "run/episodes.jsonl").read_bytes() == before


async def test_a_finished_run_needs_neither_its_server_nor_its_model(tmp_path: Path) -> None:
    with serving("catch") as served:
        await run(tmp_path / "run", spec="catch", n=5, base_url=served.url)
    outcome = await run(tmp_path / "run", spec="catch", n=5, base_url=served.url)
    assert (outcome.fresh, outcome.summary["complete"]) == (0, True)
    with pytest.raises(ConnectFailed):
        await run(tmp_path / "run", spec="catch", n=6, base_url=served.url)


async def test_a_longer_run_goes_on_where_the_shorter_one_ended(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=10)
    outcome = await run(tmp_path / "run", n=25)
    assert (outcome.fresh, outcome.summary["episodes"]) == (15, 25)
    await run(tmp_path / "whole", n=25)
    assert [facts(e) for e in read(tmp_path / "run")] == [
        facts(e) for e in read(tmp_path / "whole")
    ]


async def test_a_changed_setting_is_refused_with_what_differs(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=3, seed=1)
    with pytest.raises(RunError, match=r"seed: 1 there, 2 here"):
        await run(tmp_path / "run", n=3, seed=2)
    with pytest.raises(RunError, match=r"max_turns: 20 there, 5 here"):
        await run(tmp_path / "run", n=3, seed=1, limits=Limits(max_turns=5))


async def test_no_resume_starts_beside_the_old_run(tmp_path: Path) -> None:
    first = await run(tmp_path / "run", n=3)
    second = await run(tmp_path / "run", n=4, seed=9, resume=False)
    assert (first.folder, second.folder) == (tmp_path / "run", tmp_path / "run-2")
    assert len(read(first.folder)) == 3
    assert len(read(second.folder)) == 4


async def test_without_a_folder_the_settings_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = await collect(job(n=2), OracleAgent())
    again = await collect(job(n=4), OracleAgent())
    other = await collect(job(n=2, seed=1), OracleAgent())
    assert here.folder == again.folder != other.folder
    assert here.folder.parent == Path("runs")


async def test_a_group_plays_one_task_several_times(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=12, group_size=4)
    groups: dict[str, list[Episode]] = {}
    for episode in read(tmp_path / "run"):
        groups.setdefault(episode.group_id, []).append(episode)
    assert [len(group) for group in groups.values()] == [4, 4, 4]
    assert all(len({e.messages[1].text for e in group}) == 1 for group in groups.values())


async def test_a_mix_is_played_with_each_environments_own_tools(tmp_path: Path) -> None:
    await run(tmp_path / "run", spec="catch=0.5,echo=0.5", n=20)
    found = read(tmp_path / "run")
    tools = {(e.environment, e.tools[0]["function"]["name"]) for e in found}
    assert {name for name, _ in tools} == {"catch", "echo"}
    assert len(tools) == 2


async def test_over_the_wire_the_episodes_are_the_same(tmp_path: Path) -> None:
    await run(tmp_path / "here", spec="reasoning_gym:chain_sum", n=8)
    with serving("reasoning_gym") as served:
        await run(tmp_path / "there", spec="reasoning_gym:chain_sum", n=8, base_url=served.url)
    here, there = read(tmp_path / "here"), read(tmp_path / "there")
    assert [facts(e) for e in here] == [facts(e) for e in there]
    assert here[0].task["dataset_name"] == "chain_sum"


async def test_a_url_is_an_environment_that_says_its_own_name(tmp_path: Path) -> None:
    with serving("catch") as served:
        await run(tmp_path / "run", spec=served.url, n=3)
    assert {e.environment for e in read(tmp_path / "run")} == {"catch"}


async def test_a_fault_is_tried_again_and_leaves_no_trace(tmp_path: Path) -> None:
    first_fails = Flaky(lambda key, attempt: ModelBusy("busy") if attempt == 1 else None)
    outcome = await run(tmp_path / "run", first_fails, n=10)
    found = read(tmp_path / "run")
    assert [(e.reward, e.attempt, e.error) for e in found] == [(1.0, 2, None)] * 10
    assert outcome.summary["broken"] == 0


async def test_a_fault_that_stays_is_recorded_without_a_score(tmp_path: Path) -> None:
    doomed: set[str] = set()

    def breaks(key: str, attempt: int) -> Exception | None:
        if len(doomed) < 3:
            doomed.add(key)
        return ModelBusy("HTTP 503") if key in doomed else None

    outcome = await run(tmp_path / "run", Flaky(breaks), n=30)
    broken = [e for e in read(tmp_path / "run") if e.broken]
    assert len(broken) == outcome.summary["broken"] == 3
    assert {(e.reward, e.attempt, e.error and e.error.kind) for e in broken} == {
        (None, 3, "ModelBusy")
    }
    assert outcome.summary["mean_reward"] == 1.0
    assert outcome.summary["scored"] == 27
    again = await run(tmp_path / "run", n=30, retry_broken=True)
    assert (again.fresh, again.summary["broken"], again.summary["scored"]) == (3, 0, 30)


async def test_when_nothing_works_the_run_ends_and_nothing_is_recorded(tmp_path: Path) -> None:
    dead = Flaky(lambda key, attempt: ModelBusy("HTTP 503 nine times."))
    with pytest.raises(StoppedEarly, match=r"in a row broke.*HTTP 503.*0 of 500"):
        await run(tmp_path / "run", dead, n=500)
    assert read(tmp_path / "run") == []
    outcome = await run(tmp_path / "run", n=500)
    assert outcome.summary["scored"] == 500


async def test_faults_that_are_quicker_than_successes_do_not_end_the_run(tmp_path: Path) -> None:
    class Uneven(OracleAgent):
        async def begin(self, situation: Situation) -> Player:
            if situation.seed is not None and situation.seed % 2:
                raise ModelBusy("HTTP 503")
            await asyncio.sleep(0.3)
            return await super().begin(situation)

    tuning = Tuning(concurrency=60, attempts=1)
    outcome = await run(tmp_path / "run", Uneven(), n=120, tuning=tuning)
    assert outcome.summary["complete"]
    assert outcome.summary["broken"] > 40
    assert outcome.summary["broken"] + outcome.summary["scored"] == 120


async def test_a_run_whose_last_episode_always_breaks_can_be_finished(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=9)
    doomed = Flaky(lambda key, attempt: ModelBusy("HTTP 503"))
    outcome = await run(tmp_path / "run", doomed, n=10)
    assert (outcome.summary["complete"], outcome.summary["broken"]) == (True, 1)


async def test_what_one_task_cannot_take_is_its_own_fault_and_not_tried_again(
    tmp_path: Path,
) -> None:
    odd: list[str] = []

    def breaks(key: str, attempt: int) -> Exception | None:
        if not odd or key in odd:
            odd.append(key)
            return RequestRefused("HTTP 400: this picture cannot be read")
        return None

    outcome = await run(tmp_path / "run", Flaky(breaks), n=10)
    assert (outcome.summary["broken"], outcome.summary["scored"]) == (1, 9)
    assert len(odd) == 1


async def test_what_broken_attempts_have_cost_is_recorded(tmp_path: Path) -> None:
    class Costly(Priced):
        failed = False

        async def begin(self, situation: Situation) -> Player:
            player = await super().begin(situation)
            act = player.act

            async def act_and_break(
                messages: Sequence[Message], *, max_tokens: int | None = None
            ) -> Reply:
                reply = await act(messages)
                if len(messages) == 2:
                    call = Call(id="c", function=Function(name="add", arguments="{}"))
                    return Reply(Message(role="assistant", tool_calls=(call,)), usage=reply.usage)
                if not self.failed:
                    self.failed = True
                    raise ModelBusy("HTTP 503")
                return reply

            player.act = act_and_break  # type: ignore[method-assign]
            return player

    await run(tmp_path / "run", Costly(), n=1)
    (episode,) = read(tmp_path / "run")
    assert episode.attempt == 2
    assert episode.usage.cost == pytest.approx(0.03)


async def test_a_wrong_key_ends_the_run_at_once(tmp_path: Path) -> None:
    calls = 0

    def breaks(key: str, attempt: int) -> Exception:
        nonlocal calls
        calls += 1
        return ProviderRefuses("The key in OPENAI_API_KEY is not accepted.")

    with pytest.raises(StoppedEarly, match="OPENAI_API_KEY is not accepted"):
        await run(tmp_path / "run", Flaky(breaks), n=500, tuning=Tuning(concurrency=8))
    assert calls <= 8


async def test_a_task_that_cannot_be_is_said_before_there_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"Cannot reset .* Did you mean 'goal'"):
        await run(tmp_path / "run", ScriptedAgent(), n=50, task={"gaol": 3})
    with pytest.raises(BadSetting, match="max_terms must be >= min_terms"):
        await run(
            tmp_path / "run",
            spec="reasoning_gym:chain_sum",
            task={"dataset_config": {"min_terms": 9}},
        )
    assert not (tmp_path / "run").exists()


async def test_a_server_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match="Nobody answers"):
        await run(tmp_path / "run", spec="catch", n=5, base_url="http://127.0.0.1:9")
    assert not (tmp_path / "run").exists()


class Priced(Agent):
    """Each reply costs a cent and a hundred tokens."""

    provider = "priced"

    async def begin(self, situation: Situation) -> Player:
        class Payer(Player):
            async def act(
                self, messages: Sequence[Message], *, max_tokens: int | None = None
            ) -> Reply:
                await asyncio.sleep(0.001)
                usage = Usage(prompt_tokens=80, completion_tokens=20, cost=0.01)
                return Reply(Message(role="assistant", content="Hm."), usage=usage)

        return Payer()


@pytest.mark.parametrize(
    ("budget", "why", "most"),
    [
        (Budget(max_cost=0.5), "--max-cost $0.5 is used up", 50),
        (Budget(max_total_tokens=3000), "--max-total-tokens 3,000 is used up", 30),
    ],
)
async def test_a_budget_ends_the_run_cleanly_and_the_rest_is_left(
    tmp_path: Path, budget: Budget, why: str, most: int
) -> None:
    outcome = await run(tmp_path / "run", Priced(), n=300, budget=budget)
    assert outcome.stopped == why
    assert most - 2 <= outcome.summary["episodes"] <= most + 1
    assert outcome.summary["left"] == 300 - outcome.summary["episodes"]
    again = await run(tmp_path / "run", Priced(), n=300, budget=budget)
    assert outcome.summary["episodes"] + again.fresh <= most + 1, "what was spent before counts"
    await run(tmp_path / "run", Priced(), n=300)
    assert len(read(tmp_path / "run")) == 300


async def test_time_is_a_budget_too(tmp_path: Path) -> None:
    outcome = await run(
        tmp_path / "run",
        Priced(),
        n=100_000,
        budget=Budget(max_time=0.3),
        tuning=Tuning(concurrency=4),
    )
    assert outcome.stopped == "--max-time 0.3 s is used up"
    assert 0 < outcome.summary["episodes"] < 100_000


async def test_a_cost_limit_without_a_price_is_refused(tmp_path: Path) -> None:
    class Unpriced(Priced):
        priced = False

    with pytest.raises(BadSetting, match="--max-cost needs a price"):
        await run(tmp_path / "run", Unpriced(), budget=Budget(max_cost=1.0))
    assert not (tmp_path / "run").exists()


class Ending(Reporter):
    """Ends the run after a while, in one way or the other."""

    def __init__(self, end: Callable[[Collector], None]) -> None:
        self._end = end
        self.warnings: list[str] = []

    def begin(self, collector: Collector) -> None:
        asyncio.get_running_loop().call_later(0.05, self._end, collector)

    def warn(self, words: str) -> None:
        self.warnings.append(words)


class Slow(OracleAgent):
    async def begin(self, situation: Situation) -> Player:
        await asyncio.sleep(0.1)
        return await super().begin(situation)


async def test_draining_finishes_what_is_under_way(tmp_path: Path) -> None:
    drain = Ending(lambda collector: collector.drain("enough"))
    outcome = await run(
        tmp_path / "run", Slow(), n=100, reporter=drain, tuning=Tuning(concurrency=8)
    )
    assert (outcome.stopped, outcome.summary["episodes"]) == ("enough", 8)


async def test_draining_does_not_begin_another_attempt(tmp_path: Path) -> None:
    drain = Ending(lambda collector: collector.drain("enough"))
    dead = Flaky(lambda key, attempt: ModelBusy("HTTP 503"))
    patient = Tuning(concurrency=4, retry_pause=60.0)
    outcome = await run(tmp_path / "run", dead, n=4, reporter=drain, tuning=patient)
    assert (outcome.stopped, outcome.summary["episodes"]) == ("enough", 0)


async def test_aborting_leaves_what_is_under_way_to_be_played_again(tmp_path: Path) -> None:
    abort = Ending(lambda collector: collector.abort("now"))
    outcome = await run(
        tmp_path / "run", Slow(), n=20, reporter=abort, tuning=Tuning(concurrency=8)
    )
    assert (outcome.stopped, outcome.summary["episodes"]) == ("now", 0)
    outcome = await run(tmp_path / "run", n=20)
    assert outcome.summary["scored"] == 20


async def test_two_writers_do_not_share_a_run(tmp_path: Path) -> None:
    first = asyncio.create_task(run(tmp_path / "run", Slow(), n=4))
    await asyncio.sleep(0.05)
    with pytest.raises(RunError, match="Another process is writing"):
        await run(tmp_path / "run", n=4)
    await first


async def test_a_torn_line_is_mended_and_its_episode_played_again(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=10, tuning=Tuning(concurrency=1))
    journal = tmp_path / "run/episodes.jsonl"
    journal.write_bytes(journal.read_bytes()[:-200])
    reporter = Ending(lambda collector: None)
    outcome = await run(tmp_path / "run", n=10, reporter=reporter)
    assert (outcome.fresh, outcome.summary["episodes"]) == (1, 10)
    assert len(reporter.warnings) == 1
    assert [e.stop_reason for e in read(tmp_path / "run")] == [StopReason.DONE] * 10


async def test_damage_in_the_middle_of_a_journal_is_told_and_played_again(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=4, tuning=Tuning(concurrency=1))
    journal = tmp_path / "run/episodes.jsonl"
    first, _, *rest = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([first, b"not an episode\n", *rest, first]))
    reporter = Ending(lambda collector: None)
    outcome = await run(tmp_path / "run", n=4, reporter=reporter)
    assert (outcome.fresh, outcome.summary["episodes"]) == (1, 4)
    damage, twice = reporter.warnings
    assert "1 lines that are no episodes (line 2)" in damage
    assert "1 episodes twice" in twice


async def test_the_watchdog_is_heard(tmp_path: Path) -> None:
    class Stuck(OracleAgent):
        async def begin(self, situation: Situation) -> Player:
            await asyncio.sleep(0.5)
            return await super().begin(situation)

    reporter = Ending(lambda collector: None)
    await run(tmp_path / "run", Stuck(), n=1, reporter=reporter, tuning=Tuning(hang_warning=0.1))
    assert any("has waited" in words for words in reporter.warnings)


async def test_an_environment_that_never_opens_meets_the_deadline(tmp_path: Path) -> None:
    class Stuck(Counter):
        """Opens once, for the rehearsal."""

        begun = 0

        def __init__(self) -> None:
            super().__init__()
            Stuck.begun += 1

        @property
        async def state(self) -> State:  # type: ignore[override]
            if Stuck.begun > 1:
                await asyncio.sleep(60)
            return State()

    with (
        serving(Stuck) as served,
        pytest.raises(StoppedEarly, match="Deadline: The episode was not over"),
    ):
        limits = Limits(episode_timeout=0.2)
        await run(tmp_path / "run", ScriptedAgent(), spec=served.url, n=2, limits=limits)


async def test_a_person_plays_one_episode_after_the_other(tmp_path: Path) -> None:
    shown: list[str] = []
    asked: list[str] = []

    async def ask(prompt: str) -> str:
        await asyncio.sleep(0)
        asked.append(shown[-1])
        return "60"

    person = HumanAgent(ask, lambda message: shown.append(message.text))
    await run(tmp_path / "run", person, n=3)
    assert [line.split()[0] for line in shown] == ["Reach", "Total"] * 3
    assert all(line.startswith("Reach") for line in asked)


async def test_sessions_are_given_back(tmp_path: Path) -> None:
    with serving(Counter) as served:
        await run(tmp_path / "run", n=30, base_url=served.url, tuning=Tuning(concurrency=8))
        assert len(served.sessions) == 0


async def test_arguments_of_the_scripted_agent_are_recorded(tmp_path: Path) -> None:
    agent = ScriptedAgent(ToolCall(name="add", arguments={"number": 60}))
    await run(tmp_path / "run", agent, n=2)
    assert {e.reward for e in read(tmp_path / "run")} == {0.0}
