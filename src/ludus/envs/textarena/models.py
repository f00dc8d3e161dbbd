"""Action and observation of the textarena environment, for clients."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from ludus.protocol.types import Action, Observation


class TextArenaMessage(BaseModel):
    """A message of the game."""

    sender_id: int = -1
    """-1 is the game."""
    content: str
    category: str
    """The kind of message, as the library names it: `PROMPT`, `GAME_BOARD`, `GAME_ADMIN`…"""


class TextArenaAction(Action):
    """Send a message to the game."""

    message: str = Field(
        description="Your move, in the form that the game asks for, for example: [crane]."
    )


class TextArenaObservation(Observation):
    """What the game says."""

    prompt: str = ""
    """After a reset the rules and the first position, later the name of the game."""
    messages: list[TextArenaMessage] = Field(default_factory=list)
    """The messages since the last move."""
    current_player_id: int = 0
    legal_players: list[int] = Field(default_factory=list)
    info: dict[str, Any] = Field(default_factory=dict)
    """At the end, what the library reports about the game."""
