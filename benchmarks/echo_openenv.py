"""The echo environment of `wire.py` on OpenEnv's base classes.

OpenEnv serves it with `uvicorn --factory echo_openenv:app`; Ludus serves the same class unchanged.
Imports nothing of Ludus, so that OpenEnv's server is measured alone.
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
    """Returns every message; does the same work as `echo_ludus.EchoEnv`."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> EchoObservation:
        self.steps = 0
        return EchoObservation(echoed_message="ready")

    def step(
        self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any
    ) -> EchoObservation:
        self.steps += 1
        return EchoObservation(
            echoed_message=action.message, message_length=len(action.message), reward=1.0
        )

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


class CheapEchoEnv(EchoEnv):
    """The same, with an attribute for Ludus: steps need no thread. OpenEnv ignores it."""

    blocking = False


def app() -> FastAPI:
    """OpenEnv's server, with capacity for more sessions than are measured."""
    server: FastAPI = create_fastapi_app(
        EchoEnv, EchoAction, EchoObservation, max_concurrent_envs=1024
    )
    return server
