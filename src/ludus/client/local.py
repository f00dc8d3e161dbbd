"""A session in this process: no socket, and otherwise the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ludus.client.session import Session, StepResult, result_from
from ludus.environment.contract import Contract
from ludus.environment.host import Host
from ludus.errors import ExecutionFailed, StepTimeout
from ludus.protocol.derive import calls_by_name
from ludus.protocol.frames import action_payload, result_payload


class LocalSession(Session):
    """An environment of this process."""

    def __init__(self, contract: Contract, *, step_timeout: float | None = None) -> None:
        self._host = Host(contract, step_timeout=step_timeout)
        self._turn = asyncio.Lock()
        self._open = False

    async def open(self) -> None:
        await self._host.start()
        self.tools = await self._host.tools()
        self.calls_by_name = calls_by_name(self._host.contract.action_schema, self.tools)
        self._open = True

    async def reset(self, **task: Any) -> StepResult[dict[str, Any]]:
        async with self._turn:
            self._require_open()
            try:
                return result_from(result_payload(await self._host.reset(task)))
            except StepTimeout:
                self._open = False
                raise

    async def step(self, action: Mapping[str, Any] | BaseModel) -> StepResult[dict[str, Any]]:
        async with self._turn:
            self._require_open()
            try:
                return result_from(result_payload(await self._host.step(action_payload(action))))
            except StepTimeout:
                self._open = False
                raise

    async def state(self) -> dict[str, Any]:
        async with self._turn:
            self._require_open()
            return await self._host.state()

    async def close(self) -> None:
        if self._host.environment is not None:
            self._open = False
            await self._host.close()

    def _require_open(self) -> None:
        if not self._open:
            raise ExecutionFailed("The session is closed; open another.")
