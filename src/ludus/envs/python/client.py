"""A typed client for a python server."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.python.models import PythonAction, PythonObservation
from ludus.protocol.types import State


class PythonEnv(EnvClient[PythonAction, PythonObservation, State]):
    """A typed client for a python server.

    with PythonEnv(base_url="http://localhost:8000").sync() as client:
        print(client.reset(task="is_prime", seed=7).observation.text)
        result = client.step(PythonAction(code="def is_prime(number): return number == 2"))
    """
