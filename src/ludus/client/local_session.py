"""A session on an environment in this process."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from pydantic import BaseModel

from ludus.client.session import Session
from ludus.environment.error_mapping import raise_with_location
from ludus.environment.runner import EnvironmentRunner
from ludus.environment.spec import EnvSpec
from ludus.errors import SessionLost, StepTimeout
from ludus.protocol.action_tools import calls_by_name
from ludus.protocol.frames import action_payload, parse_result, result_payload
from ludus.protocol.types import Observation, StepResult

_CLOSED_MESSAGE = "The session is closed; open another."


class LocalSession(Session):
    """A session on an environment in this process."""

    runner: EnvironmentRunner

    def __init__(self, env_spec: EnvSpec, *, step_timeout: float | None = None) -> None:
        self.runner = EnvironmentRunner(env_spec, step_timeout=step_timeout)
        self._open = False

    async def open(self) -> None:
        with raise_with_location():
            await self.runner.start()
            self.tools = await self.runner.tools()
        self.calls_by_name = calls_by_name(self.runner.env_spec.action_schema, self.tools)
        self._open = True

    async def reset(self, /, **task: Any) -> StepResult[dict[str, Any]]:
        return self._record_reset(await self._request(self.runner.reset(task)))

    async def step(self, action: Mapping[str, Any] | BaseModel) -> StepResult[dict[str, Any]]:
        return self._record_step(await self._request(self.runner.step(action_payload(action))))

    async def state(self) -> dict[str, Any]:
        if not self._open:
            raise SessionLost(_CLOSED_MESSAGE)
        with raise_with_location():
            return await self.runner.state()

    async def close(self) -> None:
        if self.runner.environment is not None:
            self._open = False
            await self.runner.close()

    async def _request(self, seen: Coroutine[Any, Any, Observation]) -> StepResult[dict[str, Any]]:
        if not self._open:
            seen.close()
            raise SessionLost(_CLOSED_MESSAGE)
        try:
            with raise_with_location():
                return parse_result(result_payload(await seen))
        except StepTimeout:
            self._open = False
            raise
