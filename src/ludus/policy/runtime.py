"""A loaded policy with its running engine: what agents and the model server sample with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.reply_parser import ReplyParser
from ludus.policy.engine.batcher import RequestBatcher, SamplingParams
from ludus.policy.engine.hf_decoder import max_context_length

if TYPE_CHECKING:
    from ludus.policy.load import Policy

PROMPT_CACHE_SIZE = 256
"""Tokenized initial prompts; the cache is cleared when it is full. Attempts at one task share a
prompt and start close together, so a small cache is enough."""


MAX_CHARS_ON_LOOP = 50_000
"""Longer texts are rendered and tokenized by `run_off_loop`."""
_LONG_TEXT_THREADS = ThreadPoolExecutor(2, thread_name_prefix="ludus-long-text")
"""Few, because a tokenizer takes some hundred bytes per token."""

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


async def run_off_loop(work: Callable[[*Args], Result], *args: *Args) -> Result:
    """Process a long text in a thread: on the event loop, everybody else would wait."""
    return await asyncio.get_running_loop().run_in_executor(_LONG_TEXT_THREADS, work, *args)


@dataclass(frozen=True)
class PolicyRuntime:
    """A policy, its running engine and the default sampling parameters."""

    policy: Policy
    batcher: RequestBatcher
    sampling: SamplingParams
    _prompt_cache: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def context_length(self) -> int | None:
        """Most tokens of a prompt and its reply together; None: unknown."""
        return max_context_length(self.policy.model)

    @cached_property
    def reply_parser(self) -> ReplyParser:
        """Parses sampled replies with their tool calls."""
        chat_format = self.policy.chat_format
        return ReplyParser(
            self.policy.tokenizer, chat_format.response_template, chat_format.stop_token_ids
        )

    @cached_property
    def text_parser(self) -> ReplyParser:
        """Parses replies where no tools were offered: what looks like a call is text."""
        chat_format = self.policy.chat_format
        template = dict(chat_format.response_template)
        template["fields"] = {
            name: each for name, each in template["fields"].items() if name != "tool_calls"
        }
        return ReplyParser(self.policy.tokenizer, template, chat_format.stop_token_ids)

    def initial_prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[JsonObject]
    ) -> tuple[int, ...]:
        """Return the ids of an episode's first prompt, cached across attempts at a task."""
        from ludus.policy.chat import incremental_prompt

        cache, policy = self._prompt_cache, self.policy
        key = "\n".join([*(message.model_dump_json() for message in messages), json.dumps(tools)])
        if key not in cache:
            if len(cache) >= PROMPT_CACHE_SIZE:
                cache.clear()
            ids = incremental_prompt.initial_prompt_ids(
                policy.tokenizer, policy.chat_format, messages, tools
            )
            cache[key] = tuple(ids)
        return cache[key]
