"""A typed client for an echo server."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.echo.models import EchoAction, EchoObservation
from ludus.protocol.types import State


class EchoEnv(EnvClient[EchoAction, EchoObservation, State]):
    """A typed client for an echo server.

    with EchoEnv(base_url="http://localhost:8000").sync() as client:
        result = client.step(EchoAction(message="Hello!"))
    """
