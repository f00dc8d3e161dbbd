"""The same written replies through both loops: Ludus's, and that of a real trainer of TRL's.

Only the sampling is replaced, in the one place of each where tokens come from.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from policy.models import tiny
from students import student

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

QUICK: dict[str, Any] = {
    "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True,
    "dataloader_pin_memory": False, "gradient_checkpointing": False, "save_strategy": "no",
    "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 1024,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rolled:
    """What TRL made of the replies, of one member of the group."""

    prompt: list[int]
    ids: list[int]
    mask: list[int]
    messages: list[dict[str, Any]]
    reward: float | None


def speaker() -> Policy:
    """A tiny model that speaks ChatML with tools."""
    tokenizer = student()
    dialect = find_chat_format(tokenizer)
    set_chat_format(tokenizer, dialect)
    return Policy("speaker", tiny(tokenizer), tokenizer, dialect)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def ids_of(policy: Policy, reply: str) -> list[int]:
    """A reply as it would have been sampled, with the end of the turn."""
    made: list[int] = policy.tokenizer(f"{reply}<|im_end|>", add_special_tokens=False)["input_ids"]
    return made


async def through_ludus(
    patch: pytest.MonkeyPatch,
    policy: Policy,
    spec: str,
    replies: Sequence[str],
    **task: Any,
) -> Episode:
    written = iter(replies)

    async def sample(*_: Any, **__: Any) -> Completion:
        ids = tuple(ids_of(policy, next(written)))
        return Completion(ids, (-1.0,) * len(ids), stopped=True)

    patch.setattr(RequestBatcher, "sample", sample)
    async with PolicyAgent(policy) as agent, connect(spec).session() as session:
        return await run_episode(session, agent, Assignment.of(spec, **task))


def trainer_on(folder: Path, policy: Policy, spec: str, **settings: Any) -> GRPOTrainer:
    """A real trainer with TRL's own rollouts; of the class that shows tools as `collect` does."""
    return GRPOTrainer(
        model=policy.model,
        args=GRPOConfig(str(folder), **{**QUICK, **settings}),
        train_dataset=tasks(spec, 4),
        processing_class=policy.tokenizer,
        environment_factory=environment_factory(spec),
    )


def through_trl(
    trainer: GRPOTrainer, policy: Policy, replies: Sequence[str], **task: Any
) -> Rolled:
    """Two members, which say the same; the first of them."""
    written = iter(replies)
    seen: dict[str, Any] = {}
    score = trainer._calculate_rewards

    def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        # After the episode's end TRL asks for another reply.
        reply = ids_of(policy, next(written, ""))
        return [list(reply) for _ in prompt_ids], None

    def keep(inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
        seen.update(messages=prompts[0] + completions[0])
        return score(inputs, prompts, completions, ids)

    patched: Any = trainer
    patched._generate_single_turn, patched._calculate_rewards = generate, keep
    row = {**trainer.train_dataset[0], **task}
    made = trainer._generate_and_score_completions([dict(row), dict(row)])
    length = int(made["completion_mask"][0].sum())
    return Rolled(
        prompt=made["prompt_ids"][0][made["prompt_mask"][0].bool()].tolist(),
        ids=made["completion_ids"][0][:length].tolist(),
        mask=made["tool_mask"][0][:length].tolist(),
        messages=seen["messages"],
        reward=trainer.environments[0].get_reward(),
    )
