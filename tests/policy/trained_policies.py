"""Tiny models that have learned to play: one conversation, trained until it is known by heart."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import torch
from students import of_family, student
from transformers import LlamaConfig, LlamaForCausalLM

from ludus import connect
from ludus.agents.oracle import OracleAgent
from ludus.data.episode import Episode
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.chat.incremental_prompt import to_template_message
from ludus.policy.chat.rendering import render
from ludus.policy.load import Policy
from ludus.rollout import Assignment, run_episode

COUNTER = "world:Counter"
GOAL = 6
"""Two calls of the oracle's, both of them of 3, with an answer in between."""


def player(family: str = "qwen3") -> Policy:
    """A model that plays Counter as its oracle does, up to 6, whatever it is asked for."""
    return _taught(family)


@cache
def _taught(family: str) -> Policy:
    tokenizer = student() if family == "chatml" else of_family(family)
    dialect = find_chat_format(tokenizer)
    model = _model(len(tokenizer), tokenizer)
    episode = asyncio.run(_solved())
    talk = [to_template_message(message) for message in episode.messages]
    lesson = render(tokenizer, talk, episode.tools, dialect.template)
    _learn(model, lesson.ids, lesson.mask)
    return Policy("player", model.eval(), tokenizer, dialect)


async def _solved() -> Episode:
    async with connect(COUNTER).session() as session:
        return await run_episode(session, OracleAgent(), Assignment.of(COUNTER, goal=GOAL))


def _model(words: int, tokenizer: Any) -> Any:
    make: Any = LlamaForCausalLM  # Not typed by its makers.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(
            LlamaConfig(
                vocab_size=words,
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


def _learn(model: Any, ids: tuple[int, ...], mask: tuple[int, ...]) -> None:
    """Until its own tokens are nearly certain."""
    labels = [token if own else -100 for token, own in zip(ids, mask, strict=True)]
    given = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels])}
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(300):
        loss = model(**given).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.01:
            return
    raise AssertionError("the model has not learned it")
