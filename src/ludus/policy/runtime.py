"""A loaded policy with its running engine: what agents and the model server sample with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.policy.chat.incremental_prompt import initial_prompt_ids
from ludus.policy.chat.reply_parser import ReplyParser
from ludus.policy.device import choose_dtype
from ludus.policy.engine.batcher import RequestBatcher
from ludus.policy.engine.hf_decoder import HFDecoder, max_context_length
from ludus.policy.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from ludus.policy.load import Policy

HF_MAX_BATCH = 64
TRITON_MAX_BATCH = 256
PROMPT_CACHE_SIZE = 256
"""Tokenized initial prompts; the cache is cleared when it is full. Attempts at one task share a
prompt and start close together, so a small cache is enough."""
MAX_CHARS_ON_LOOP = 50_000
"""Longer texts are rendered and tokenized in a thread: on the event loop, all others would wait."""


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
        """Parses replies if no tools were offered: what looks like a call is text."""
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
        cache, policy = self._prompt_cache, self.policy
        key = "\n".join([*(message.model_dump_json() for message in messages), json.dumps(tools)])
        if key not in cache:
            if len(cache) >= PROMPT_CACHE_SIZE:
                cache.clear()
            ids = initial_prompt_ids(policy.tokenizer, policy.chat_format, messages, tools)
            cache[key] = tuple(ids)
        return cache[key]


def start_engine(
    policy: Policy,
    *,
    fast: bool | None = None,
    dtype: str | None = None,
    max_batch: int | None = None,
) -> tuple[RequestBatcher, str]:
    """Start the best engine for a policy; returns its batcher and a line about the engine.

    Args:
        fast: True requires the Triton engine, False excludes it, None takes it if it can.
        dtype: The dtype that the user set: the Triton engine decodes in bfloat16.
        max_batch: Most requests at once. Default: depends on the engine.
    """
    reason = None
    if policy.vision is not None:
        reason = "the model takes images"
    elif fast is False:
        reason = "the Triton engine is switched off"
    elif fast is None and policy.model.device.type != "cuda":
        reason = "no GPU"
    elif fast is None and dtype and choose_dtype(dtype, "cuda") != "bfloat16":
        reason = f"the dtype is {dtype}, and the Triton engine decodes in bfloat16"
    if reason is None:
        from ludus.policy.triton_engine.triton_engine import build_triton_engine

        limit = max_batch or TRITON_MAX_BATCH
        try:
            engine = build_triton_engine(policy.model, max_batch=limit)
        except Exception as error:
            # A compiler or a driver that cannot build the kernels must not end the run.
            if fast:
                raise
            message = " ".join(str(error).split())[:200]
            engine = f"the Triton engine failed with {type(error).__name__}: {message}"
        if not isinstance(engine, str):
            description = "Triton engine, with reference ops on the CPU"
            if policy.model.device.type == "cuda":
                import torch

                gpu = torch.cuda.get_device_name(policy.model.device)
                description = f"Triton engine with CUDA graphs on {gpu}"
            # Late requests join a running batch, so there is no need to wait for them.
            return RequestBatcher(engine, max_batch=limit, batch_wait_s=0.0), description
        reason = engine
    if fast:
        raise ConfigError(f"`fast` decoding is not supported here: {reason}. Leave it off.")
    pad_id = policy.tokenizer.pad_token_id or 0
    if policy.vision is None:
        decoder = HFDecoder(policy.model, pad_id=pad_id)
    else:
        from ludus.policy.vision.vlm_decoder import VLMDecoder

        decoder = VLMDecoder(policy.model, pad_id=pad_id, vision=policy.vision)
    return RequestBatcher(decoder, max_batch=max_batch or HF_MAX_BATCH), f"HF decoder: {reason}"
