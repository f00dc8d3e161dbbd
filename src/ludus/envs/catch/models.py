"""Action and observation of the catch environment, for clients."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ludus.protocol.types import Action, TextObservation

Direction = Literal["left", "stay", "right"]


class CatchAction(Action):
    """Move the paddle by one column; the ball falls by one row."""

    direction: Direction = Field(description="Where the paddle goes.")


class CatchObservation(TextObservation):
    """The grid, in `text`."""
