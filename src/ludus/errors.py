"""Every error that Ludus raises on purpose, as one tree.

    LudusError
    ├── EnvironmentNotFound      no environment answers to that spec
    ├── MissingExtra             an optional part is not installed
    ├── BadEnvironment           a class that does not keep the author's contract
    ├── ToolError                raised by an author's tool: the model did something wrong
    ├── BadSetting               a setting that cannot be, said before anything is played
    ├── RunError                 a run folder that cannot be used as asked
    ├── StoppedEarly             a run that was ended because nothing worked any more
    ├── PublishFailed            an upload that did not arrive; everything is still on disk
    ├── TemplateUnmarked         a chat template that does not tell whose words a token is
    ├── TemplateRefused          a chat template that raises over a conversation
    ├── AgentError               something between an agent and its model
    │   ├── ProviderRefuses      no point in asking again: key, model, quota
    │   ├── RequestRefused       this very request is refused: asking again gives the same
    │   ├── ModelBusy            429 or 5xx, again and again
    │   ├── ModelUnreachable     the line to the provider does not hold
    │   ├── ModelTimeout         no reply in time, again and again
    │   └── BadReply             a reply that cannot be read
    └── SessionError             something between a session and its environment
        ├── ConnectFailed        nobody answers at that address, or it refuses
        ├── SessionLost          the connection broke and the session could not be taken up again
        ├── RequestTimeout       no reply in time; the session is closed, its state unknown
        └── WireError            the server said so: has `code` and `details`
            ├── InvalidAction        VALIDATION_ERROR
            ├── ExecutionFailed      EXECUTION_ERROR
            │   ├── EpisodeNotStarted
            │   ├── EpisodeOver
            │   └── StepTimeout      SESSION_ERROR: the step hung, the session is gone
            ├── CapacityReached      CAPACITY_REACHED
            └── FactoryFailed        FACTORY_ERROR

A message says what was asked, what is so, and what to do. In process and over the wire the same
mistake raises the same class.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar


class LudusError(Exception):
    """The base of every error that Ludus raises on purpose."""


class EnvironmentNotFound(LudusError):
    """No environment answers to that spec."""


class MissingExtra(LudusError):
    """An optional part of Ludus is needed and not installed."""

    @classmethod
    def of(cls, extra: str, purpose: str) -> MissingExtra:
        return cls(f"{purpose} needs an optional part. Install it: pip install 'ludus-rl[{extra}]'")


class BadEnvironment(LudusError):
    """A class that does not keep the author's contract; `advice` says what to change."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.problem} {self.advice}".strip()


class ToolError(LudusError):
    """Raised by an author's tool: the model gets the message, and the episode goes on."""


class ConfigError(LudusError):
    """A setting that cannot be; nothing has been played yet."""


class RunError(LudusError):
    """A run folder that cannot be used as asked: other settings, another writer, no run at all."""


class OutOfMemory(RunError):
    """The memory of the device does not suffice; `batch_size` is the largest that does, if any."""

    def __init__(self, message: str, *, batch_size: int | None) -> None:
        super().__init__(message)
        self.batch_size = batch_size


class StoppedEarly(LudusError):
    """A run was ended because nothing worked any more. What was recorded stands."""


class PublishFailed(LudusError):
    """An upload did not arrive. Everything is still on disk."""


class TemplateUnmarked(LudusError):
    """No way is known to tell the assistant's tokens from the others under this template."""


class TemplateRefused(LudusError):
    """The template raised over this conversation; training would end there."""


class AgentError(LudusError):
    """Something went wrong between an agent and its model: nobody's score."""


class ProviderRefuses(AgentError):
    """The provider turns every request away: a wrong key, an unknown model, no quota left."""


class RequestRefused(AgentError):
    """The provider refuses this very request; asking again gives the same."""


class ModelBusy(AgentError):
    """Too many requests (429) or a failing server (5xx), and bounded retries did not help."""


class ModelUnreachable(AgentError):
    """The connection to the provider could not be made or did not hold."""


class ModelTimeout(AgentError):
    """No reply in time, and bounded retries did not help."""


class BadReply(AgentError):
    """The provider answered with something that cannot be read."""


class SessionError(LudusError):
    """Something went wrong between a session and its environment."""


class ConnectFailed(SessionError):
    """Nobody answers at that address, or the server refuses."""


class SessionLost(SessionError):
    """The connection broke and the session could not be taken up again."""


class RequestTimeout(SessionError):
    """No reply in time. The session is closed: what its environment did is unknown."""


class WireError(SessionError):
    """An error that the environment's side reported, with its code and details."""

    default_code: ClassVar[str] = "EXECUTION_ERROR"
    author_line: str | None = None
    """The exception in the author's code, with file and line. Never sent over the wire."""

    def __init__(
        self, message: str, code: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        self.code = code or self.default_code
        self.details = dict(details or {})
        super().__init__(message, self.code, self.details)

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidAction(WireError):
    """A message or an action that does not validate; `details["errors"]` lists why."""

    default_code = "VALIDATION_ERROR"


class ExecutionFailed(WireError):
    """The environment raised while it was resetting or stepping."""


class EpisodeNotStarted(ExecutionFailed):
    """A step before the first reset."""


class EpisodeOver(ExecutionFailed):
    """A step after the episode had ended."""


class StepTimeout(ExecutionFailed):
    """A step took too long. The session is gone: the environment may still be running it."""

    default_code = "SESSION_ERROR"


class CapacityReached(WireError):
    """The server has no free session; `details` says how many there are."""

    default_code = "CAPACITY_REACHED"


class FactoryFailed(WireError):
    """The environment could not be built."""

    default_code = "FACTORY_ERROR"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of an error message: the closest known name, or what to do instead."""
    close = closest_match(name, known)
    return f"Did you mean {close!r}?" if close else otherwise


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)
