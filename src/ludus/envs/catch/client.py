"""A typed client for a catch server."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.catch.models import CatchAction, CatchObservation
from ludus.protocol.types import State


class CatchEnv(EnvClient[CatchAction, CatchObservation, State]):
    """A typed client for a catch server.

    with CatchEnv(base_url="http://localhost:8000").sync() as client:
        print(client.reset(seed=7).observation.text)
        result = client.step(CatchAction(direction="left"))
    """
