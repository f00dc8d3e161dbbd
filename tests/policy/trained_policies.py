"""Tiny policies that are trained on one conversation until they reproduce it."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import torch
from tiny_tokenizers import of_family, student
from transformers import LlamaConfig, LlamaForCausalLM

from ludus import connect
from ludus.agents.oracle import OracleAgent
from ludus.data.episode import Episode
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.chat.rendering import render, to_template_message
from ludus.policy.load import Policy
from ludus.rollout import Assignment, run_episode

COUNTER = "world:Counter"
GOAL = 6
"""The oracle makes two calls of 3, with a result in between."""


def player(family: str = "qwen3") -> Policy:
    """A policy that plays Counter up to 6 like the oracle, whatever the goal."""
    return _train_policy(family)


@cache
def _train_policy(family: str) -> Policy:
    tokenizer = student() if family == "chatml" else of_family(family)
    chat_format = find_chat_format(tokenizer)
    model = _build_model(tokenizer)
    episode = asyncio.run(_solve())
    messages = [to_template_message(message) for message in episode.messages]
    rendered = render(tokenizer, messages, episode.tools, chat_format.template)
    _train(model, rendered.ids, rendered.mask)
    return Policy("player", model.eval(), tokenizer, chat_format)


async def _solve() -> Episode:
    async with connect(COUNTER).session() as session:
        return await run_episode(session, OracleAgent(), Assignment.of(COUNTER, goal=GOAL))


def _build_model(tokenizer: Any) -> Any:
    model_class: Any = LlamaForCausalLM  # transformers has no types for it.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model_class(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=1024,
                tie_word_embeddings=True,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )


def _train(model: Any, ids: tuple[int, ...], mask: tuple[int, ...]) -> None:
    """Train until the assistant's tokens are nearly certain."""
    labels = [token if has_loss else -100 for token, has_loss in zip(ids, mask, strict=True)]
    batch = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels])}
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(300):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.01:
            return
    raise AssertionError("the loss did not converge")
