"""The games of the OpenSpiel library as an environment (extra `openspiel`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ludus.client.env_client import EnvClient
from ludus.data.tool_schema import JsonObject
from ludus.envs import lazy_environment
from ludus.protocol.types import Action, State, TextObservation

if TYPE_CHECKING:
    from ludus.envs.openspiel.environment import OpenSpiel

IgnoredName = Annotated[str, SkipJsonSchema()]
IgnoredParams = Annotated[JsonObject, SkipJsonSchema()]
"""Fields that OpenEnv's clients send with every action. The game is chosen by `reset`, so they have
no effect, and the schema that a model is shown leaves them out."""


class OpenSpielAction(Action):
    """Play one of the legal moves."""

    action_id: int = Field(description="The number of a legal move, as listed in the observation.")
    game_name: IgnoredName = Field(default="", description="Ignored.")
    game_params: IgnoredParams = Field(default_factory=dict, description="Ignored.")


class OpenSpielObservation(TextObservation):
    """The position: for a model in `text`, for a network in `info_state`."""

    info_state: list[float] = Field(default_factory=list)
    """OpenSpiel's information state tensor of the player, or its observation tensor if the game
    has none; empty if it has neither."""
    legal_actions: list[int] = Field(default_factory=list)
    game_phase: str = "playing"
    """`initial`, `playing` or `terminal`."""
    current_player_id: int = 0
    opponent_last_action: int | None = None
    """The last move of an opponent; None in games of imperfect information, in which it may
    be hidden."""


class OpenSpielEnv(EnvClient[OpenSpielAction, OpenSpielObservation, State]):
    """A typed client for an openspiel server."""


__all__ = ["OpenSpiel", "OpenSpielAction", "OpenSpielEnv", "OpenSpielObservation"]

__getattr__ = lazy_environment(__name__, "OpenSpiel", extra="openspiel", libraries=("pyspiel",))
