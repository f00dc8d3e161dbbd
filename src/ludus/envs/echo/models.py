"""Action and observation of the echo environment, for clients."""

from __future__ import annotations

from ludus.protocol.types import Action, Observation


class EchoAction(Action):
    """Say something."""

    message: str


class EchoObservation(Observation):
    """What came back."""

    echoed_message: str
    message_length: int = 0
