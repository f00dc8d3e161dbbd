"""Echo: the smallest environment there is, for trying out a connection or a trainer."""

from __future__ import annotations

import random

from ludus.client.env_client import EnvClient
from ludus.data.tool_schema import JsonObject, ToolCall
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import tool
from ludus.protocol.types import Action, Observation, State


class EchoAction(Action):
    """Say something."""

    message: str


class EchoObservation(Observation):
    """What came back."""

    echoed_message: str
    message_length: int = 0


class EchoEnv(EnvClient[EchoAction, EchoObservation, State]):
    """A typed client for an echo server."""


_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty")


class Echo(ToolEnvironment):
    """Say something, and hear it back.

    Tools:
        echo_message(message): gives the message back. A bare action `{"message": …}` goes here.
        echo_with_length(message): gives the message and its length.
    Observation:
        A phrase to begin with; then `echoed_message` and `message_length`.
    Reward:
        0.1 for each character of a message, up to `limit` characters if there is one.
    Episode end:
        Never: it lasts as long as you talk.
    Task arguments:
        seed: picks the phrase.
        limit: how many characters of a message are worth something (all).
    """

    max_reward = None
    rewards_any_action = True
    needs_reset = False  # Scripts written for OpenEnv's echo step without one.

    def __init__(self) -> None:
        self.reset()

    def reset(self, *, seed: int | None = None, limit: int | None = None) -> EchoObservation:
        rng = random.Random(seed)
        self.phrase = " ".join(rng.choice(_WORDS) for _ in range(4))
        self.limit = limit
        self.has_spoken = False
        bound = "" if limit is None else f", up to {limit} characters per message"
        return EchoObservation(
            echoed_message=(
                f"Say something, for example: {self.phrase}\n"
                f"Your message is sent back to you. Each of its characters scores 0.1{bound}. "
                "The conversation goes on as long as you want."
            )
        )

    @tool(default=True)
    def echo_message(self, message: str) -> EchoObservation:
        """Echo the message back.

        Args:
            message: What to say.
        """
        self._award_length(message)
        return EchoObservation(echoed_message=message, message_length=len(message))

    @tool
    def echo_with_length(self, message: str) -> JsonObject:
        """Echo the message back, with its length.

        Args:
            message: What to say.
        """
        self._award_length(message)
        return {"message": message, "length": len(message)}

    def _award_length(self, message: str) -> None:
        self.has_spoken = True
        self.award(0.1 * len(message[: self.limit]))

    def oracle(self) -> ToolCall | None:
        if self.has_spoken:
            return None
        message = (f"{self.phrase} " * 100)[: 100 if self.limit is None else self.limit]
        return ToolCall(name="echo_message", arguments={"message": message})
