"""The echo environment of `wire.py` as a Ludus environment.

Imports nothing of OpenEnv, so that the server is measured as users run it.
"""

from __future__ import annotations

from ludus import Action, Environment, Observation, State


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed_message: str
    message_length: int = 0


class EchoEnv(Environment[EchoAction, EchoObservation, State]):
    """Returns every message; does the same work as `echo_openenv.EchoEnv`."""

    def reset(self, *, seed: int | None = None) -> EchoObservation:
        self.steps = 0
        return EchoObservation(echoed_message="ready")

    def step(self, action: EchoAction) -> EchoObservation:
        self.steps += 1
        return EchoObservation(
            echoed_message=action.message, message_length=len(action.message), reward=1.0
        )
