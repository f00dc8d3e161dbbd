"""The single-player games of the TextArena library as an environment (extra `textarena`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from ludus.client.env_client import EnvClient
from ludus.data.tool_schema import JsonObject
from ludus.envs import lazy_environment
from ludus.protocol.types import Action, State, TextObservation

if TYPE_CHECKING:
    from ludus.envs.textarena.environment import TextArena


class TextArenaMessage(BaseModel):
    """A message of the conversation."""

    sender_id: int = -1
    content: str
    category: str = "MESSAGE"


class TextArenaAction(Action):
    """Send a message to the game."""

    message: str = Field(
        description="Your move, in the form that the game asks for, for example: [crane]."
    )


class TextArenaObservation(TextObservation):
    """What the game says: for a model in `text`, and in OpenEnv's fields."""

    prompt: str = ""
    """Until the first valid move the same as in `messages`, later the name of the game."""
    messages: list[TextArenaMessage] = Field(default_factory=list)
    """One message, with everything that was said so far."""
    current_player_id: int = 0
    legal_players: list[int] = Field(default_factory=list)
    info: JsonObject = Field(default_factory=dict)
    """At the end, what the library reports about the game."""


class TextArenaEnv(EnvClient[TextArenaAction, TextArenaObservation, State]):
    """A typed client for a textarena server."""


__all__ = [
    "TextArena",
    "TextArenaAction",
    "TextArenaEnv",
    "TextArenaMessage",
    "TextArenaObservation",
]

__getattr__ = lazy_environment(__name__, "TextArena", extra="textarena", libraries=("textarena",))
