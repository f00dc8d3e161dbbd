"""What went wrong with a provider, said in one line that holds no secret."""

from __future__ import annotations

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
    """The messages are longer than the model can take. Agents make a reply of it."""


class ContentFiltered(RequestRefused):
    """The provider's filter stopped it. Agents make a reply of it."""


_ERROR_BY_REASON: dict[RefusalReason, type[AgentError]] = {
    RefusalReason.CONTEXT: ContextLengthExceeded,
    RefusalReason.FILTER: ContentFiltered,
    RefusalReason.REQUEST: RequestRefused,
}
_HINT_BY_REASON = {
    RefusalReason.KEY: "Check the key and what it may be used for.",
    RefusalReason.MODEL: "Check the model's name and the address.",
    RefusalReason.QUOTA: "Look at the account's balance and limits.",
    RefusalReason.MOVED: "Give the address that it sends them to.",
}
_HINT_BY_ERROR: dict[type[AgentError], str] = {
    ModelBusy: "Ask for fewer calls at once, or try later.",
    ModelUnreachable: "Check the connection, and whether the server is up.",
    ModelTimeout: "Allow more time for a call, or shorter replies.",
    BadReply: "Check that the address is that of a chat API.",
}


class ProviderErrors:
    """The errors of one provider."""

    def __init__(self, model: str, base_url: str, key: ApiKey | None) -> None:
        self._model = model
        self._url = base_url
        self._key = key
        self._target = f"{model} at {base_url}"

    def scrub(self, text: str) -> str:
        """A text that may leave: without the key, or anybody's credentials in an address."""
        text = _URL_CREDENTIALS.sub("://***@", text)
        return self._key.scrub(text) if self._key else text

    def retries_exhausted(self, fault: TransientFault, attempts: int) -> AgentError:
        """The last try has failed too."""
        times = "once" if attempts == 1 else f"{attempts} times, at last"
        text = f"{self._target} was asked {times}: {self._one_line(fault.text)}."
        return fault.error_class(self.scrub(f"{text} {_HINT_BY_ERROR[fault.error_class]}"))

    def wait_too_long(self, wait: float, longest: float) -> ModelBusy:
        """The server asks for more patience than there is."""
        return ModelBusy(
            f"{self._target} asks to wait {wait:.0f} s, and more than {longest:.0f} s is not waited. "
            "Try again then."
        )

    def unreachable(self, why: str) -> ModelUnreachable:
        """No connection, before anything was asked."""
        return ModelUnreachable(
            self.scrub(f"Nobody answers at {self._url} ({self._one_line(why)}). ")
            + "Is the server running, and is the address right?"
        )

    def from_refusal(self, refusal: Refusal) -> AgentError:
        """There is no point in asking again."""
        kind = _ERROR_BY_REASON.get(refusal.reason, ProviderRefuses)
        text = f"{self._headline(refusal.reason)}: {self._one_line(refusal.text) or 'it does not say why'}"
        return kind(self.scrub(f"{text} {_HINT_BY_REASON.get(refusal.reason, '')}".strip()))

    def _headline(self, reason: RefusalReason) -> str:
        asked_with = f"the key from {self._key.source}" if self._key else "requests without a key"
        match reason:
            case RefusalReason.KEY:
                return f"{self._url} does not take {asked_with}"
            case RefusalReason.MODEL:
                return f"There is no model {self._model!r} at {self._url}"
            case RefusalReason.QUOTA:
                return f"There is nothing left to spend at {self._url} with {asked_with}"
            case RefusalReason.MOVED:
                return f"{self._url} sends requests elsewhere"
            case _:
                return f"{self._target} refuses this request"

    def _one_line(self, text: str) -> str:
        """The server's words, on one line. Scrubbed before cut: half a key is a secret too."""
        line = " ".join(self.scrub(text).split())
        return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[: _MAX_MESSAGE_CHARS - 3]}..."
