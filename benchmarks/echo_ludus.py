"""Echo, written as a Ludus environment, for `wire.py`.

Nothing of OpenEnv is imported here, so that the server is measured as its users run it.
"""

from __future__ import annotations

from ludus import Action, Environment, Observation, State


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed_message: str
    message_length: int = 0


class EchoEnv(Environment[EchoAction, EchoObservation, State]):
    """Gives every message back. `echo_openenv.EchoEnv` does the same work, line for line."""

    def reset(self, *, seed: int | None = None) -> EchoObservation:
        self.heard = 0
        return EchoObservation(echoed_message="ready")

    def step(self, action: EchoAction) -> EchoObservation:
        self.heard += 1
        return EchoObservation(
            echoed_message=action.message, message_length=len(action.message), reward=1.0
        )
