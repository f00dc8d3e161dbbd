"""TRL's rollouts in a GRPO run: rewards and recorded episodes."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from ludus.data.episode import Episode, StopReason
from ludus.environment.mixture import parse_mixture
from ludus.errors import RunError
from ludus.policy.load import Policy
from ludus.rollout.plan import task_seed
from ludus.scoring.reward_functions import RewardFunction, RewardFunctions
from ludus.train.distributed import Distributed
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.trl_compat import GRPOConfig as TRLConfig
from ludus.train.trl_compat import GRPOTrainer
from ludus.train.trl_compat.trl_rollouts import TRLRollouts, build_trl_rollouts
from train.trl_compat.scripted_rollouts import FAST_ARGS, call, chat_policy, encode_reply

SETTINGS = GRPOConfig(steps=1, groups=2, group_size=2, max_episode_tokens=600, seed=3)
REPLIES = [call("add", number=50), call("add", number=60), call("add", number=1), "I give up."]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return chat_policy()


def short_episode_penalty(episode: Episode) -> float | None:
    return None if episode.turns > 1 else -0.5


def run_step(
    folder: Path, policy: Policy, spec: str, rewards: RewardFunctions, replies: list[str]
) -> tuple[list[Episode], dict[str, Any], TRLRollouts]:
    """Train one step in which each member gives its reply, and then gives up."""
    kept: list[Episode] = []
    rollouts = build_trl_rollouts(
        parse_mixture(spec),
        SETTINGS,
        rewards=rewards,
        distributed=Distributed(),
        on_episodes=kept.extend,
        agent={"model": "chat_policy"},
        run_id="0badcafe",
    )
    settings = {**FAST_ARGS, "per_device_train_batch_size": 4, "max_completion_length": 600}
    config = TRLConfig(
        str(folder), **settings, max_steps=1, logging_steps=1, shuffle_dataset=False,
        reward_weights=list(rollouts.reward_weights.values()),
    )  # fmt: skip
    trainer = GRPOTrainer(
        policy.model, args=config, processing_class=policy.tokenizer, **rollouts.trainer_kwargs
    )
    rollouts.attach(trainer)
    first = [encode_reply(policy, reply) for reply in replies]

    def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[Any, None]:
        asked = list(first) or [encode_reply(policy, "I give up.")] * len(prompt_ids)
        first.clear()
        return asked, None

    patched: Any = trainer
    patched._generate_single_turn = generate
    trainer.train()
    return kept, trainer.state.log_history[0], rollouts


def test_episodes_have_messages_tokens_and_reward(tmp_path: Path, policy: Policy) -> None:
    kept, logged, rollouts = run_step(tmp_path, policy, "world:Counter", RewardFunctions(), REPLIES)
    assert rollouts.reward_weights == {"world:Counter": 1.0}
    assert [each.stop_reason for each in kept] == [
        StopReason.DONE, StopReason.DONE, StopReason.NO_TOOL_CALL, StopReason.NO_TOOL_CALL,
    ]  # fmt: skip
    assert [each.seed for each in kept] == [
        task_seed(SETTINGS.tasks_seed, number // 2) for number in range(4)
    ]
    assert kept[0].group_id == kept[1].group_id != kept[2].group_id
    assert [each.episode_id for each in kept] == [f"0badcafe-{at:06d}" for at in range(4)]
    first = kept[2]
    roles = [message.role for message in first.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert first.messages[2].tool_calls is not None
    assert first.messages[3].tool_call_id == first.messages[2].tool_calls[0].id
    assert first.tokens is not None
    sampled = [id for id, own in zip(first.tokens.ids, first.tokens.mask, strict=True) if own]
    assert sampled == [*encode_reply(policy, REPLIES[2]), *encode_reply(policy, "I give up.")]
    assert first.agent == {"model": "chat_policy", "step": 1}
    assert logged["reward"] == pytest.approx(sum(each.reward or 0 for each in kept) / 4)
    assert (logged["format"], logged["done"]) == (0.5, 0.5), "two gave up in words"
    assert Episode.from_line(first.to_line()) == first


def test_reward_functions_are_weighted_and_optional(tmp_path: Path, policy: Policy) -> None:
    rewards = RewardFunctions((RewardFunction("brief", 2.0, short_episode_penalty),))
    kept, logged, rollouts = run_step(tmp_path, policy, "world:Counter", rewards, REPLIES)
    assert rollouts.reward_weights == {"world:Counter": 1.0, "brief": 2.0}
    assert kept[3].rewards == {"world:Counter": 0.0, "brief": -0.5}
    assert kept[3].reward == -1.0
    assert "brief" not in kept[0].rewards
    assert logged["rewards/brief/mean"] == pytest.approx(-0.5)
    assert logged["reward"] == pytest.approx(sum(each.reward or 0 for each in kept) / 4)


def test_async_reward_functions_run_concurrently(tmp_path: Path, policy: Policy) -> None:
    asked = 0
    everybody = asyncio.Event()

    async def judge(episode: Episode) -> float:
        nonlocal asked
        asked += 1
        if asked == len(REPLIES):
            everybody.set()
        async with asyncio.timeout(60):
            await everybody.wait()
        return float(episode.turns)

    rewards = RewardFunctions((RewardFunction("judge", 1.0, judge),))
    kept, _, _ = run_step(tmp_path, policy, "world:Counter", rewards, REPLIES)
    assert [each.rewards["judge"] for each in kept] == [each.turns for each in kept]


def test_fault_leaves_other_episodes_scored(tmp_path: Path, policy: Policy) -> None:
    pushes = [call("push"), call("push", hard=True), call("push"), "No."]
    kept, logged, _ = run_step(
        tmp_path, policy, "train.trl_compat.environments:Fragile", RewardFunctions(), pushes
    )
    assert [each.reward for each in kept] == [1.0, None, 1.0, 0.0]
    assert kept[1].broken and kept[1].error is not None
    assert kept[1].error.message.endswith("It fell over.")
    assert logged["unscored"] == 0.25
    assert logged["reward"] == pytest.approx(2 / 3)
    assert math.isfinite(logged["loss"]) and math.isfinite(logged["grad_norm"])


def test_mixture_has_a_reward_per_environment(tmp_path: Path, policy: Policy) -> None:
    words = ["Hm."] * 4
    kept, _, rollouts = run_step(
        tmp_path, policy, "world:Two,world:Counter", RewardFunctions(), words
    )
    assert list(rollouts.reward_weights) == ["world:Two", "world:Counter"]
    for episode in kept:
        names = {tool["function"]["name"] for tool in episode.tools}
        assert names == ({"add"} if episode.environment == "world:Counter" else {"double", "leave"})


def test_group_with_different_prompts_is_an_error(tmp_path: Path, policy: Policy) -> None:
    with pytest.raises(RunError, match=r"IgnoresSeed .*same seed"):
        run_step(
            tmp_path,
            policy,
            "train.trl_compat.environments:IgnoresSeed",
            RewardFunctions(),
            ["Hm."] * 4,
        )
