"""A typed client for an openspiel server; it does not need the library."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.openspiel.models import OpenSpielAction, OpenSpielObservation
from ludus.protocol.types import State


class OpenSpielEnv(EnvClient[OpenSpielAction, OpenSpielObservation, State]):
    """A typed client for an openspiel server.

    with OpenSpielEnv(base_url="http://localhost:8000").sync() as client:
        print(client.reset(seed=7, game_name="tic_tac_toe").observation.text)
        result = client.step(OpenSpielAction(action_id=4))
    """
