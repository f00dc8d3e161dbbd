"""Real model servers on loopback, and the official client of OpenAI's API."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI
from policy.trained_policies import COUNTER, GOAL
from policy.triton_engine.tiny_models import build_model
from tiny_tokenizers import of_family
from world import wait_until

from ludus import connect
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.engine.batcher import RequestBatcher
from ludus.policy.load import Policy
from ludus.serve.config import ModelServeConfig
from ludus.serve.listening import DrainingServer
from ludus.serve.model.model_server import build_model_server
from ludus.serve.model.recorder import Recorder

QUESTION: list[Any] = [{"role": "user", "content": "What is 17 plus 25?"}]


@cache
def counter_question() -> dict[str, Any]:
    """The messages and tools of the game that `trained_policies.player` plays."""

    async def ask() -> dict[str, Any]:
        async with connect(COUNTER).session() as session:
            question = await session.reset(goal=GOAL)
            tools = [tool.to_openai() for tool in session.tools]
            return {"messages": [{"role": "user", "content": question.content}], "tools": tools}

    return asyncio.run(ask())


@dataclass
class ServedModel:
    url: str
    server: DrainingServer
    recorder: Recorder | None
    agent: PausableAgent

    def client(self, **options: Any) -> Any:
        """The official client; its overloads do not take options as a dictionary."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=60, **options)

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


class PausableEngine:
    """The real engine, which waits in the middle of its work while it is paused."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.stats = engine.stats
        self._released = threading.Event()
        self._released.set()
        self._polls_left = 0

    def pause(self, *, after_polls: int = 0) -> None:
        """Wait for `release` when the engine has asked so often whether a request is wanted."""
        self._polls_left = after_polls
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def run(self, requests: Any, deliver: Any, is_wanted: Any, poll_requests: Any) -> None:
        def ask(index: int) -> bool:
            if self._polls_left:
                self._polls_left -= 1
            else:
                assert self._released.wait(60)
            return bool(is_wanted(index))

        self._engine.run(requests, deliver, ask, poll_requests)

    def refresh(self) -> None:
        self._engine.refresh()

    def free_cache(self, *, larger_than: int = 0) -> None:
        self._engine.free_cache(larger_than=larger_than)


class PausableAgent(PolicyAgent):
    """An agent with a pausable engine."""

    engine: PausableEngine

    def _start_engine(self, policy: Policy) -> RequestBatcher:
        batcher = super()._start_engine(policy)
        self.engine = PausableEngine(batcher.engine)
        return RequestBatcher(self.engine, max_batch=batcher.max_batch, batch_wait_s=0.0)


@cache
def random_policy(context: int = 2048) -> Policy:
    """A policy with random weights: it writes nonsense, and hardly ever ends."""
    tokenizer = of_family("qwen3")
    model = build_model(
        vocab_size=len(tokenizer),
        max_position_embeddings=context,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Policy("nonsense", model, tokenizer, find_chat_format(tokenizer))


@contextmanager
def serving_model(
    policy: Policy | None = None,
    *,
    record: Path | None = None,
    max_batch: int | None = None,
    fast: bool | None = None,
    temperature: float | None = None,
    **settings: Any,
) -> Iterator[ServedModel]:
    """A server of this policy, on a port that is free."""
    agent = PausableAgent(
        policy or random_policy(), max_batch=max_batch, fast=fast, temperature=temperature
    )
    asyncio.run(agent.prepare())
    config = replace(ModelServeConfig(), **settings)
    recorder = None
    if record is not None:
        recorder = Recorder(record, agent.describe(), session_timeout=config.session_timeout)
    listener = socket.create_server(("127.0.0.1", 0))
    config = replace(config, port=listener.getsockname()[1])
    server = build_model_server(agent, config, recorder=recorder)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield ServedModel(config.url, server, recorder, agent)
    finally:
        server.should_exit = True
        thread.join(40)
        assert not thread.is_alive(), "the server did not stop"
        if recorder is not None:
            recorder.close()
