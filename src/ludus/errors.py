"""All errors that Ludus raises, as one tree; hints and descriptions for their messages.

    LudusError
    ├── EnvironmentNotFound      no environment has this spec
    ├── MissingExtra             an optional dependency is not installed
    ├── BadEnvironment           a class is not a valid environment
    ├── ToolError                raised by an author's tool: the model made a mistake
    ├── ConfigError              an argument is invalid; nothing has been played yet
    ├── RunError                 a run folder cannot be read, written or continued
    │   └── TrainingDiverged         a loss, a gradient or a weight is not finite
    ├── StoppedEarly             a run was stopped because every episode broke
    ├── WorkerDied               a worker process ended while it played an episode
    │   └── WorkersFailed        worker processes end again and again, or cannot be started
    ├── PublishFailed            an upload failed; everything is still on disk
    ├── TemplateUnmarked         the assistant's tokens cannot be found under a chat template
    ├── TemplateRefused          a chat template raises for a conversation
    ├── AgentError               an error between an agent and its model
    │   ├── ProviderRefuses      every request is refused: key, model or quota
    │   ├── RequestRefused       this request is refused; a retry gives the same
    │   ├── ModelBusy            429 or 5xx, also after retries
    │   ├── ModelUnreachable     no connection to the provider
    │   ├── ModelTimeout         no reply in time, also after retries
    │   └── BadReply             a reply cannot be parsed
    └── SessionError             an error between a session and its environment
        ├── ConnectFailed        the server cannot be reached, or refuses the connection
        │   └── ContainerFailed      a container cannot be started, or is not healthy in time
        ├── SessionLost          the connection broke and the session could not be resumed
        ├── RequestTimeout       no reply in time; the session is closed
        └── WireError            reported by the environment, with `code` and `details`
            ├── InvalidAction        VALIDATION_ERROR
            ├── ExecutionFailed      EXECUTION_ERROR
            │   ├── EpisodeNotStarted
            │   ├── EpisodeOver
            │   └── StepTimeout      SESSION_ERROR: the step timed out, the session is closed
            ├── CapacityReached      CAPACITY_REACHED
            └── FactoryFailed        FACTORY_ERROR

A message says what is wrong, with the offending value, and what to do. In it, arguments stand in
backticks. The same mistake raises the same class in process and over the wire. Episodes record the
class names of the errors that broke them, so that these names are part of a stored format.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

MAX_MESSAGE_CHARS = 500
"""Maximum length of an exception's message; the rest is cut off."""
EPISODE_CONTINUES = "episode_continues"
"""The key in the details of an error, also on the wire, of `ExecutionFailed.episode_continues`."""
NameFlags = Callable[[str, Sequence[str]], str]
"""Replaces arguments in backticks by the flags of a command, such as ("train", "grpo")."""


class LudusError(Exception):
    """The base class of all errors of Ludus."""


class EnvironmentNotFound(LudusError):
    """No environment has this spec."""


class MissingExtra(LudusError):
    """An optional dependency is not installed."""

    @classmethod
    def of(cls, extra: str, purpose: str) -> MissingExtra:
        return cls(f"{purpose} needs an optional part. Install it: pip install 'ludus-rl[{extra}]'")


class BadEnvironment(LudusError):
    """A class is not a valid environment; `advice` says what to change."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.problem} {self.advice}".strip()


class ToolError(LudusError):
    """Raised by an author's tool: the model gets the message, and the episode continues."""


class ConfigError(LudusError):
    """An argument is invalid. Raised before anything is played or written."""


class MissingCredentials(ConfigError):
    """An API key or a login is missing."""


class RunError(LudusError):
    """A run folder cannot be read, written or continued."""


class OtherSettings(RunError):
    """The folder holds a run with other settings, which cannot be continued with these."""


class OutOfMemory(RunError):
    """The device is out of memory."""

    after_start = False
    """Whether training had begun: what the output folder holds is of this run then."""


class TrainingDiverged(RunError):
    """A loss, a gradient or a weight is not finite. Earlier checkpoints are kept."""


class StoppedEarly(LudusError):
    """A run was stopped because every episode broke. What was recorded is kept."""


class WorkerDied(LudusError):
    """A worker process ended while it played an episode."""


class WorkersFailed(WorkerDied):
    """Worker processes end again and again, or cannot be started."""


class PublishFailed(LudusError):
    """An upload failed. Everything is still on disk."""


class TemplateUnmarked(LudusError):
    """The assistant's tokens cannot be told from the others under this chat template."""


class TemplateRefused(LudusError):
    """The chat template raised for this conversation; training would fail there."""


class AgentError(LudusError):
    """An error between an agent and its model. The episode is unscored."""


class ProviderRefuses(AgentError):
    """The provider refuses every request: a wrong key, an unknown model, no quota left."""


class RequestRefused(AgentError):
    """The provider refuses this request; a retry gives the same."""


class ModelBusy(AgentError):
    """Too many requests (429) or a server error (5xx), also after retries."""


class ModelUnreachable(AgentError):
    """The connection to the provider failed or broke."""


class ModelTimeout(AgentError):
    """No reply in time, also after retries."""


class BadReply(AgentError):
    """The reply of the provider cannot be parsed."""


class SessionError(LudusError):
    """An error between a session and its environment."""


class ConnectFailed(SessionError):
    """The server cannot be reached, or refuses the connection."""


class ContainerFailed(ConnectFailed):
    """A container cannot be started, or its server is not healthy in time."""


class SessionLost(SessionError):
    """The connection broke and the session could not be resumed."""


class RequestTimeout(SessionError):
    """No reply in time. The session is closed, because the state of its environment is unknown."""


class WireError(SessionError):
    """An error that the environment's side reported, with its code and details."""

    default_code: ClassVar[str] = "EXECUTION_ERROR"
    author_line: str | None = None
    """The exception in the author's code, with file and line. Never sent over the wire."""
    advice = ""
    """What the author can do, if that is known; `ludus check` prints it."""

    def __init__(
        self, message: str, code: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        self.code = code or self.default_code
        self.details = dict(details or {})
        super().__init__(message, self.code, self.details)

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidAction(WireError):
    """A message or an action does not validate; `details["errors"]` lists the errors."""

    default_code = "VALIDATION_ERROR"


class ExecutionFailed(WireError):
    """The environment raised in a reset or a step."""

    @property
    def episode_continues(self) -> bool:
        """Whether the action was refused and the episode goes on, as OpenEnv's environments do."""
        return bool(self.details.get(EPISODE_CONTINUES))


class EpisodeNotStarted(ExecutionFailed):
    """A step before the first reset."""


class EpisodeOver(ExecutionFailed):
    """A step after the episode had ended."""


class StepTimeout(ExecutionFailed):
    """A step timed out. The session is closed, because the step may still be running."""

    default_code = "SESSION_ERROR"


class CapacityReached(WireError):
    """The server has no free session; `details` has the limits."""

    default_code = "CAPACITY_REACHED"


class FactoryFailed(WireError):
    """The environment could not be built."""

    default_code = "FACTORY_ERROR"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for an error message: the closest known name, or `otherwise`."""
    match = closest_match(name, known)
    return f"Did you mean {match!r}?" if match else otherwise


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar, if one is similar enough."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def similar_path_hint(name: str) -> str:
    """A hint for the error about a missing path: a similar name in the same folder, or ''."""
    path = Path(name).expanduser()
    try:
        siblings = [each.name for each in path.parent.iterdir()]
    except OSError:
        return ""
    match = closest_match(path.name, siblings)
    return f"Did you mean {str(path.parent / match)!r}?" if match else ""


def describe_exception(error: BaseException) -> str:
    """Class and message of any exception: `ValueError: no such word`."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def describe_in_one_line(error: BaseException) -> str:
    """Class and message of any exception, in one line that is not too long."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    text = " ".join(message.split())
    if len(text) > MAX_MESSAGE_CHARS:
        text = f"{text[:MAX_MESSAGE_CHARS]} …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
