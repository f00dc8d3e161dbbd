"""A typed client for an openspiel server; it does not need the library."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.openspiel.models import OpenSpielAction, OpenSpielObservation
from ludus.protocol.types import State


class OpenSpielEnv(EnvClient[OpenSpielAction, OpenSpielObservation, State]):
    """A typed client for an openspiel server."""
