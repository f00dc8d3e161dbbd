"""A session in this process: no socket, and otherwise the same."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from pydantic import BaseModel

from ludus.client.session import Session, StepResult, result_from
from ludus.environment.contract import Contract
from ludus.environment.faults import told_with_location
from ludus.environment.host import Host
from ludus.errors import SessionLost, StepTimeout
from ludus.protocol.derive import calls_by_name
from ludus.protocol.frames import action_payload, result_payload
from ludus.protocol.types import Observation


class LocalSession(Session):
    """An environment of this process."""

    def __init__(self, contract: Contract, *, step_timeout: float | None = None) -> None:
        self._host = Host(contract, step_timeout=step_timeout)
        self._open = False

    async def open(self) -> None:
        with told_with_location():
            await self._host.start()
            self.tools = await self._host.tools()
        self.calls_by_name = calls_by_name(self._host.contract.action_schema, self.tools)
        self._open = True

    async def reset(self, **task: Any) -> StepResult[dict[str, Any]]:
        return self._first(await self._ask(self._host.reset(task)))

    async def step(self, action: Mapping[str, Any] | BaseModel) -> StepResult[dict[str, Any]]:
        return self._next(await self._ask(self._host.step(action_payload(action))))

    async def state(self) -> dict[str, Any]:
        if not self._open:
            raise _closed()
        with told_with_location():
            return await self._host.state()

    async def close(self) -> None:
        if self._host.environment is not None:
            self._open = False
            await self._host.close()

    async def _ask(self, seen: Coroutine[Any, Any, Observation]) -> StepResult[dict[str, Any]]:
        if not self._open:
            seen.close()
            raise _closed()
        try:
            with told_with_location():
                return result_from(result_payload(await seen))
        except StepTimeout:
            self._open = False
            raise


def _closed() -> SessionLost:
    return SessionLost("The session is closed; open another.")
