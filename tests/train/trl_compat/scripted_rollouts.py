"""Scripted replies played by Ludus's loop and by a real TRL trainer.

Only sampling is replaced in each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from policy.models import tiny
from tiny_tokenizers import student

from ludus import connect
from ludus.data.episode import Episode
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.chat_format import find_chat_format, set_chat_format
from ludus.policy.engine.batcher import RequestBatcher
from ludus.policy.engine.engine_api import Completion
from ludus.policy.load import Policy
from ludus.rollout import Assignment, run_episode
from ludus.train import environment_factory
from ludus.train.trl_compat import GRPOConfig, GRPOTrainer, tasks

FAST_ARGS: dict[str, Any] = {
    "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True,
    "dataloader_pin_memory": False, "gradient_checkpointing": False, "save_strategy": "no",
    "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 1024,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TRLResult:
    """The rollout of one member of the group by TRL."""

    prompt: list[int]
    ids: list[int]
    mask: list[int]
    messages: list[dict[str, Any]]
    reward: float | None


def chat_policy() -> Policy:
    """Return a tiny model with a ChatML tool template."""
    tokenizer = student()
    chat_format = find_chat_format(tokenizer)
    set_chat_format(tokenizer, chat_format)
    return Policy("chat_policy", tiny(tokenizer), tokenizer, chat_format)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def encode_reply(policy: Policy, reply: str) -> list[int]:
    """Return the token ids of a reply, with the end of the turn."""
    ids: list[int] = policy.tokenizer(f"{reply}<|im_end|>", add_special_tokens=False)["input_ids"]
    return ids


async def run_ludus_loop(
    patch: pytest.MonkeyPatch,
    policy: Policy,
    spec: str,
    replies: Sequence[str],
    **task: Any,
) -> Episode:
    remaining = iter(replies)

    async def sample(*_: Any, **__: Any) -> Completion:
        ids = tuple(encode_reply(policy, next(remaining)))
        return Completion(ids, (-1.0,) * len(ids), stopped=True)

    patch.setattr(RequestBatcher, "sample", sample)
    async with PolicyAgent(policy) as agent, connect(spec).session() as session:
        return await run_episode(session, agent, Assignment.of(spec, **task))


def build_trainer(folder: Path, policy: Policy, spec: str, **settings: Any) -> GRPOTrainer:
    """Build a trainer with TRL's own rollouts."""
    return GRPOTrainer(
        model=policy.model,
        args=GRPOConfig(str(folder), **{**FAST_ARGS, **settings}),
        train_dataset=tasks(spec, 4),
        processing_class=policy.tokenizer,
        environment_factory=environment_factory(spec),
    )


def run_trl_loop(
    trainer: GRPOTrainer, policy: Policy, replies: Sequence[str], **task: Any
) -> TRLResult:
    """Play a group of two equal members; return the first."""
    remaining = iter(replies)
    seen: dict[str, Any] = {}
    score = trainer._calculate_rewards

    def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        # TRL generates another reply after the end of the episode.
        reply = encode_reply(policy, next(remaining, ""))
        return [list(reply) for _ in prompt_ids], None

    def keep(inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
        seen.update(messages=prompts[0] + completions[0])
        return score(inputs, prompts, completions, ids)

    patched: Any = trainer
    patched._generate_single_turn, patched._calculate_rewards = generate, keep
    row = {**trainer.train_dataset[0], **task}
    batch = trainer._generate_and_score_completions([dict(row), dict(row)])
    length = int(batch["completion_mask"][0].sum())
    return TRLResult(
        prompt=batch["prompt_ids"][0][batch["prompt_mask"][0].bool()].tolist(),
        ids=batch["completion_ids"][0][:length].tolist(),
        mask=batch["tool_mask"][0][:length].tolist(),
        messages=seen["messages"],
        reward=trainer.environments[0].get_reward(),
    )
