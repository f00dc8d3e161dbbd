"""A typed client for a python server."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.python.models import PythonAction, PythonObservation
from ludus.protocol.types import State


class PythonEnv(EnvClient[PythonAction, PythonObservation, State]):
    """A typed client for a python server."""
