"""A typed client for a countdown server."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.countdown.models import CountdownAction, CountdownObservation
from ludus.protocol.types import State


class CountdownEnv(EnvClient[CountdownAction, CountdownObservation, State]):
    """A typed client for a countdown server.

    with CountdownEnv(base_url="http://localhost:8000").sync() as client:
        print(client.reset(seed=7).observation.text)
        result = client.step(CountdownAction(first=25, operation="*", second=4))
    """
