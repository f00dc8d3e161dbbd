"""What breaks, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from ludus.agents.agent import EpisodeContext, Player, Reply
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import ScriptedAgent
from ludus.data.messages import Call, Function, Message
from ludus.errors import (
    ConfigError,
    ConnectFailed,
    ModelBusy,
    ProviderRefuses,
    RequestRefused,
    StoppedEarly,
)
from rollout.small_runs import Flaky, Priced, read, run


async def test_a_fault_is_tried_again_and_leaves_no_trace(tmp_path: Path) -> None:
    first_fails = Flaky(lambda key, attempt: ModelBusy("busy") if attempt == 1 else None)
    result = await run(tmp_path / "run", first_fails, n=10)
    found = read(tmp_path / "run")
    assert [(e.reward, e.attempt, e.error) for e in found] == [(1.0, 2, None)] * 10
    assert result.summary["broken"] == 0


async def test_a_fault_that_stays_is_recorded_without_a_score(tmp_path: Path) -> None:
    doomed: set[str] = set()

    def breaks(key: str, attempt: int) -> Exception | None:
        if len(doomed) < 3:
            doomed.add(key)
        return ModelBusy("HTTP 503") if key in doomed else None

    result = await run(tmp_path / "run", Flaky(breaks), n=30)
    broken = [e for e in read(tmp_path / "run") if e.broken]
    assert len(broken) == result.summary["broken"] == 3
    assert {(e.reward, e.attempt, e.error and e.error.kind) for e in broken} == {
        (None, 3, "ModelBusy")
    }
    assert result.summary["mean_reward"] == 1.0
    assert result.summary["scored"] == 27
    again = await run(tmp_path / "run", n=30, retry_broken=True)
    assert (again.new_episodes, again.summary["broken"], again.summary["scored"]) == (3, 0, 30)


async def test_when_nothing_works_the_run_ends_and_nothing_is_recorded(tmp_path: Path) -> None:
    dead = Flaky(lambda key, attempt: ModelBusy("HTTP 503 nine times."))
    with pytest.raises(StoppedEarly, match=r"HTTP 503.* 0 of 500"):
        await run(tmp_path / "run", dead, n=500)
    assert read(tmp_path / "run") == []
    result = await run(tmp_path / "run", n=500)
    assert result.summary["scored"] == 500


async def test_faults_that_are_quicker_than_successes_do_not_end_the_run(tmp_path: Path) -> None:
    class Uneven(OracleAgent):
        async def begin(self, context: EpisodeContext) -> Player:
            if context.seed is not None and context.seed % 2:
                raise ModelBusy("HTTP 503")
            await asyncio.sleep(0.3)
            return await super().begin(context)

    result = await run(tmp_path / "run", Uneven(), n=120, concurrency=60, max_attempts=1)
    assert result.summary["complete"]
    assert result.summary["broken"] > 40
    assert result.summary["broken"] + result.summary["scored"] == 120


async def test_a_run_whose_last_episode_always_breaks_can_be_finished(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=9)
    doomed = Flaky(lambda key, attempt: ModelBusy("HTTP 503"))
    result = await run(tmp_path / "run", doomed, n=10)
    assert (result.summary["complete"], result.summary["broken"]) == (True, 1)


async def test_what_one_task_cannot_take_is_its_own_fault_and_not_tried_again(
    tmp_path: Path,
) -> None:
    odd: list[str] = []

    def breaks(key: str, attempt: int) -> Exception | None:
        if not odd or key in odd:
            odd.append(key)
            return RequestRefused("HTTP 400: this picture cannot be read")
        return None

    result = await run(tmp_path / "run", Flaky(breaks), n=10)
    assert (result.summary["broken"], result.summary["scored"]) == (1, 9)
    assert len(odd) == 1


async def test_what_broken_attempts_have_cost_is_recorded(tmp_path: Path) -> None:
    class Costly(Priced):
        failed = False

        async def begin(self, context: EpisodeContext) -> Player:
            player = await super().begin(context)
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

    with pytest.raises(StoppedEarly, match="OPENAI_API_KEY"):
        await run(tmp_path / "run", Flaky(breaks), n=500, concurrency=8)
    assert calls <= 8


async def test_a_task_that_cannot_be_is_said_before_there_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'gaol'.*'goal'"):
        await run(tmp_path / "run", ScriptedAgent(), n=50, task={"gaol": 3})
    with pytest.raises(ConfigError, match=r"max_terms .*min_terms"):
        await run(
            tmp_path / "run",
            spec="reasoning_gym:chain_sum",
            task={"dataset_config": {"min_terms": 9}},
        )
    assert not (tmp_path / "run").exists()


async def test_a_server_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match="Cannot connect"):
        await run(tmp_path / "run", spec="catch", n=5, base_url="http://127.0.0.1:9")
    assert not (tmp_path / "run").exists()
