"""Error messages about a provider: one line each, without secrets."""

from __future__ import annotations

import os
import re

from ludus.agents.api_keys import ApiKey
from ludus.agents.response_errors import Refusal, RefusalReason, TransientFault
from ludus.errors import (
    AgentError,
    BadReply,
    ModelBusy,
    ModelTimeout,
    ModelUnreachable,
    ProviderRefuses,
    RequestRefused,
)

_MAX_MESSAGE_CHARS = 300
_URL_CREDENTIALS = re.compile(r"://[^/\s@]*@")


class ContextLengthExceeded(RequestRefused):
    """The messages are longer than the model's context. Agents turn it into a reply."""


class ContentFiltered(RequestRefused):
    """The provider's content filter refused the request. Agents turn it into a reply."""


_ERROR_BY_REASON: dict[RefusalReason, type[AgentError]] = {
    RefusalReason.CONTEXT: ContextLengthExceeded,
    RefusalReason.FILTER: ContentFiltered,
    RefusalReason.REQUEST: RequestRefused,
}
_HINT_BY_REASON = {
    RefusalReason.KEY: "Check the key and its permissions.",
    RefusalReason.MODEL: "Check the model's name and the URL.",
    RefusalReason.QUOTA: "Check the account's balance and limits.",
    RefusalReason.MOVED: "Use the URL that it redirects to.",
}
_HINT_BY_ERROR: dict[type[AgentError], str] = {
    ModelBusy: "Lower `concurrency`, or try again later.",
    ModelUnreachable: "Check the connection, and whether the server is up.",
    ModelTimeout: "Raise `call_timeout`, or allow fewer tokens.",
    BadReply: "Check that the URL is that of a chat API.",
}


class ProviderErrors:
    """Builds the errors of one provider."""

    def __init__(self, model: str, base_url: str, key: ApiKey | None) -> None:
        self._model = model
        self._url = base_url
        self._key = key
        self._target = f"{model} at {base_url}"

    def scrub(self, text: str) -> str:
        """The text without the key, and without credentials in URLs."""
        text = _URL_CREDENTIALS.sub("://***@", text)
        return self._key.scrub(text) if self._key else text

    def retries_exhausted(self, fault: TransientFault, attempts: int) -> AgentError:
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        text = f"{self._target} failed after {times}: {self._one_line(fault.text)}."
        return fault.error_class(self.scrub(f"{text} {_HINT_BY_ERROR[fault.error_class]}"))

    def wait_too_long(self, wait_s: float, longest_s: float) -> ModelBusy:
        return ModelBusy(
            f"{self._target} asks to wait {wait_s:.0f} s, which is more than the limit of "
            f"{longest_s:.0f} s. Try again then."
        )

    def unreachable(self, reason: str) -> ModelUnreachable:
        return ModelUnreachable(
            self.scrub(f"Cannot connect to {self._url} ({self._one_line(reason)}). ")
            + "Check that the server is running and that the URL is right."
        )

    def from_refusal(self, refusal: Refusal) -> AgentError:
        error_class = _ERROR_BY_REASON.get(refusal.reason, ProviderRefuses)
        details = self._one_line(refusal.text) or "no reason given."
        hint = _HINT_BY_REASON.get(refusal.reason, "")
        text = f"{self._headline(refusal.reason)}: {details} {hint}"
        return error_class(self.scrub(text.strip()))

    def _headline(self, reason: RefusalReason) -> str:
        key = f"the key from {self._key.source}" if self._key else "requests without a key"
        match reason:
            case RefusalReason.KEY:
                return f"{self._url} does not accept {key}"
            case RefusalReason.MODEL:
                return f"There is no model {self._model!r} at {self._url}"
            case RefusalReason.QUOTA:
                return f"The quota at {self._url} is used up for {key}"
            case RefusalReason.MOVED:
                return f"{self._url} redirects requests elsewhere"
            case _:
                return f"{self._target} refuses this request"

    def _one_line(self, text: str) -> str:
        """The server's message on one line. Scrubbed before it is cut: half a key is a secret."""
        line = " ".join(self.scrub(text).split())
        return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[: _MAX_MESSAGE_CHARS - 3]}..."


def connection_error_text(error: Exception) -> str:
    """Why a connection to a provider failed, in a few words."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__
