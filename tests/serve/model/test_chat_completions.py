"""Choices of a request that are streamed together."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from ludus.policy.engine.sampling import SamplingParams
from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.chat_completions import ChatCompletions
from ludus.serve.model.chat_sampler import ChatCall, ChatChoice, ChatSampler, OnDeltas, Reply
from ludus.serve.model.generator import SamplingPlan
from ludus.serve.model.requests import ChatBody


class _FailingSampler(ChatSampler):
    """The first choice fails; the others never end."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def stream(self, call: ChatCall, choice: ChatChoice, on_deltas: OnDeltas) -> Reply:
        if choice.index == 0:
            raise ApiError("The model failed.", status=500)
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError


async def test_a_choice_that_fails_ends_the_stream_of_all() -> None:
    sampler = _FailingSampler()
    body = ChatBody.model_validate({"messages": [{"role": "user"}], "n": 2})
    plan = SamplingPlan(max_tokens=1, sampling=SamplingParams(), stop=(), seed=0)
    conversation: Any = None
    choices = [ChatChoice(index, conversation, None) for index in range(2)]
    call = ChatCall(body, (), plan, choices, AsyncExitStack())
    async with asyncio.timeout(20):
        events = [event async for event in ChatCompletions(sampler, "m").stream(call)]
    assert b"The model failed." in events[-1] and b"[DONE]" not in events[-1]
    assert sampler.cancelled.is_set()
