"""A typed client for a guess_number server."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.guess_number.models import GuessNumberAction, GuessNumberObservation
from ludus.protocol.types import State


class GuessNumberEnv(EnvClient[GuessNumberAction, GuessNumberObservation, State]):
    """A typed client for a guess_number server.

    with GuessNumberEnv(base_url="http://localhost:8000").sync() as client:
        print(client.reset(seed=7).observation.text)
        result = client.step(GuessNumberAction(number=50))
    """
