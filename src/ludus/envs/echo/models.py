"""What a client of an echo server sends and gets."""

from __future__ import annotations

from ludus.protocol.types import Action, Observation


class EchoAction(Action):
    """Say something."""

    message: str


class EchoObservation(Observation):
    """What came back."""

    echoed_message: str
    message_length: int = 0
