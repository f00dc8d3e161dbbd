"""Collecting episodes with a local model."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from rollout.small_runs import read, run
from tiny_tokenizers import of_family
from world import Counter

from ludus.data.episode import StopReason
from ludus.errors import ConfigError, RunError
from ludus.policy import load
from ludus.policy.agent import PolicyAgent
from ludus.policy.load import Policy
from policy.models import saved
from policy.trained_policies import GOAL, player


@pytest.fixture(scope="module")
def policy() -> Policy:
    return player()


async def test_concurrent_episodes_share_batches(policy: Policy, tmp_path: Path) -> None:
    sizes: list[int] = []
    hook = policy.model.register_forward_pre_hook(
        lambda _, __, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    try:
        async with PolicyAgent(policy, temperature=0, max_batch=16) as agent:
            result = await run(tmp_path / "run", agent, n=24, group_size=2, task={"goal": GOAL})
    finally:
        hook.remove()
    episodes = read(tmp_path / "run")
    assert result.summary["episodes"] == 24 and {episode.reward for episode in episodes} == {1.0}
    sampled = sum(sum(episode.tokens.mask) for episode in episodes if episode.tokens)
    assert max(sizes) == 16 and len(sizes) < sampled / 6


class LongPrompts(Counter):
    """The prompt of every other task is longer than a tiny model's context."""

    def reset(self, *, seed: int | None = None, goal: int | None = None) -> str:
        return super().reset(seed=seed, goal=goal) + " please" * (5000 * ((seed or 0) % 2))


async def test_a_prompt_that_exceeds_the_context_is_a_fault_without_retry(
    policy: Policy, tmp_path: Path
) -> None:
    async with PolicyAgent(policy, temperature=0) as agent:
        spec = "policy.test_collect:LongPrompts"
        await run(tmp_path / "run", agent, spec=spec, n=12, task={"goal": GOAL})
    episodes = read(tmp_path / "run")
    long_ones = [episode for episode in episodes if (episode.seed or 0) % 2]
    short_ones = [episode for episode in episodes if episode not in long_ones]
    assert long_ones and short_ones and {episode.error for episode in short_ones} == {None}
    assert {(episode.attempt, episode.reward, episode.stop_reason) for episode in long_ones} == {
        (1, None, StopReason.BROKEN)
    }
    (fault,) = {episode.error for episode in long_ones}
    assert fault is not None and (fault.kind, fault.where) == ("RequestRefused", "model")
    assert "1,024" in fault.message


async def test_concurrent_callers_share_one_load(tmp_path: Path) -> None:
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


async def test_a_retrained_model_does_not_resume_an_old_run(
    tmp_path: Path,
) -> None:
    async def collect_one(seed: int) -> None:
        model = saved(tmp_path / "model", of_family("qwen3"), seed=seed)
        async with PolicyAgent(str(model), device="cpu") as agent:
            await run(tmp_path / "run", agent, n=1, max_turns=1, max_tokens=4)

    await collect_one(seed=0)
    await collect_one(seed=0)
    with pytest.raises(RunError, match=r'\n  agent\.weights: "\w+" there, "\w+" here'):
        await collect_one(seed=1)


async def test_a_model_that_cannot_be_loaded_leaves_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    async with PolicyAgent(str(tmp_path / "empty")) as agent:
        with pytest.raises(ConfigError, match="empty"):
            await run(tmp_path / "run", agent, n=2)
    assert not (tmp_path / "run").exists()


def test_a_load_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    may_load, has_loaded = threading.Event(), threading.Event()

    def slow_load(*_: object, **__: object) -> None:
        may_load.wait(60)
        has_loaded.set()

    monkeypatch.setattr(load, "load", slow_load)

    async def main() -> None:
        async with asyncio.timeout(0.1), PolicyAgent("m") as agent:
            await agent.prepare()

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert not has_loaded.is_set(), "asyncio.run returns before the load has ended"
    may_load.set()
