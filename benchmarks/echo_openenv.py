"""Echo, written against OpenEnv's own base classes, for `wire.py`.

OpenEnv serves it with `uvicorn --factory echo_openenv:app`; Ludus serves the same class unchanged.
Nothing of Ludus is imported here, so that OpenEnv's server is measured alone.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed_message: str
    message_length: int = 0


class EchoEnv(Environment[EchoAction, EchoObservation, State]):
    """Gives every message back. `echo_ludus.EchoEnv` does the same work, line for line."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> EchoObservation:
        self.heard = 0
        return EchoObservation(echoed_message="ready")

    def step(
        self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any
    ) -> EchoObservation:
        self.heard += 1
        return EchoObservation(
            echoed_message=action.message, message_length=len(action.message), reward=1.0
        )

    @property
    def state(self) -> State:
        return State(step_count=self.heard)


class CheapEchoEnv(EchoEnv):
    """The same, with a word to Ludus that OpenEnv does not read: steps need no thread."""

    blocking = False


def app() -> FastAPI:
    """OpenEnv's server, with room for more sessions than are measured."""
    made: FastAPI = create_fastapi_app(
        EchoEnv, EchoAction, EchoObservation, max_concurrent_envs=1024
    )
    return made
