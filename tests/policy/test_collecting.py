"""Many episodes of one local model: they share its batches."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from rollout.small_runs import read, run
from students import of_family
from world import Counter

from ludus.data.episode import StopReason
from ludus.errors import ConfigError, RunError
from ludus.policy import load
from ludus.policy.agent import PolicyAgent
from ludus.policy.load import Policy
from policy.models import saved
from policy.players import GOAL, player


@pytest.fixture(scope="module")
def taught() -> Policy:
    return player()


async def test_episodes_that_are_played_at_once_share_batches(
    taught: Policy, tmp_path: Path
) -> None:
    sizes: list[int] = []
    watch = taught.model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(len(given["input_ids"])), with_kwargs=True
    )
    try:
        async with PolicyAgent(taught, temperature=0, max_batch=16) as agent:
            outcome = await run(tmp_path / "run", agent, n=24, group_size=2, task={"goal": GOAL})
    finally:
        watch.remove()
    episodes = read(tmp_path / "run")
    assert outcome.summary["episodes"] == 24 and {episode.reward for episode in episodes} == {1.0}
    sampled = sum(sum(episode.tokens.mask) for episode in episodes if episode.tokens)
    assert max(sizes) == 16 and len(sizes) < sampled / 6


class Wordy(Counter):
    """Every other task is longer than a tiny model can read."""

    def reset(self, *, seed: int | None = None, goal: int | None = None) -> str:
        return super().reset(seed=seed, goal=goal) + " please" * (5000 * ((seed or 0) % 2))


async def test_a_task_that_cannot_be_read_is_a_fault_and_is_not_tried_again(
    taught: Policy, tmp_path: Path
) -> None:
    async with PolicyAgent(taught, temperature=0) as agent:
        wordy = "policy.test_collecting:Wordy"
        await run(tmp_path / "run", agent, spec=wordy, n=12, task={"goal": GOAL})
    played = read(tmp_path / "run")
    long = [each for each in played if (each.seed or 0) % 2]
    short = [each for each in played if each not in long]
    assert long and short and {each.error for each in short} == {None}
    assert {(each.attempt, each.reward, each.stop_reason) for each in long} == {
        (1, None, StopReason.BROKEN)
    }
    (fault,) = {each.error for each in long}
    assert fault is not None and (fault.kind, fault.where) == ("RequestRefused", "model")
    assert "the model reads 1,024 at most: no room is left for a reply." in fault.message


async def test_a_model_is_loaded_once_for_all_who_want_it(tmp_path: Path) -> None:
    agent = PolicyAgent(str(saved(tmp_path / "model")), device="cpu", dtype="float32")
    first, second = await asyncio.gather(agent.ensure_loaded(), agent.ensure_loaded())
    assert first is second and first.policy.name == str(tmp_path / "model")
    assert agent.describe() == {
        "provider": "hf",
        "model": first.policy.name,
        "temperature": 1.0,
        "weights": first.policy.weights,
        "dtype": "float32",
    }
    await agent.close()
    await agent.close()


async def test_a_model_that_was_trained_anew_does_not_go_on_with_the_old_ones_run(
    tmp_path: Path,
) -> None:
    async def played(seed: int) -> None:
        model = saved(tmp_path / "model", of_family("qwen3"), seed=seed)
        async with PolicyAgent(str(model), device="cpu") as agent:
            await run(tmp_path / "run", agent, n=1, max_turns=1, max_tokens=4)

    await played(seed=0)
    await played(seed=0)
    with pytest.raises(RunError, match=r'settings:\n  agent\.weights: "\w+" there, "\w+" here'):
        await played(seed=1)


async def test_a_model_that_cannot_be_loaded_leaves_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    async with PolicyAgent(str(tmp_path / "empty")) as agent:
        with pytest.raises(ConfigError, match="empty"):
            await run(tmp_path / "run", agent, n=2)
    assert not (tmp_path / "run").exists()


def test_a_load_that_takes_long_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = threading.Event()
    monkeypatch.setattr(load, "load", lambda *_, **__: loaded.wait(60))

    async def main() -> None:
        async with asyncio.timeout(0.1), PolicyAgent("m") as agent:
            await agent.prepare()

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(main())
    loaded.set()
    assert time.monotonic() - began < 10, "nothing waits for the thread that loads"
