"""What went wrong with a provider, said in one line that holds no secret."""

from __future__ import annotations

import re

from ludus.agents.answer import Fault, Reason, Refusal
from ludus.agents.keys import Key
from ludus.errors import (
    AgentError,
    BadReply,
    ModelBusy,
    ModelTimeout,
    ModelUnreachable,
    ProviderRefuses,
    RequestRefused,
)

_SHOWN = 300
_CREDENTIALS = re.compile(r"://[^/\s@]*@")


class ContextFull(RequestRefused):
    """The messages are longer than the model can take. Agents make a reply of it."""


class Filtered(RequestRefused):
    """The provider's filter stopped it. Agents make a reply of it."""


_CLASSES: dict[Reason, type[AgentError]] = {
    Reason.CONTEXT: ContextFull,
    Reason.FILTER: Filtered,
    Reason.REQUEST: RequestRefused,
}
_REMEDIES = {
    Reason.KEY: "Check the key and what it may be used for.",
    Reason.MODEL: "Check the model's name and the address.",
    Reason.QUOTA: "Look at the account's balance and limits.",
    Reason.MOVED: "Give the address that it sends them to.",
}
_ADVICE: dict[type[AgentError], str] = {
    ModelBusy: "Ask for fewer calls at once, or try later.",
    ModelUnreachable: "Check the connection, and whether the server is up.",
    ModelTimeout: "Allow more time for a call, or shorter replies.",
    BadReply: "Check that the address is that of a chat API.",
}


class Complaints:
    """The errors of one provider."""

    def __init__(self, model: str, base_url: str, key: Key | None) -> None:
        self._model = model
        self._url = base_url
        self._key = key
        self._who = f"{model} at {base_url}"

    def scrub(self, text: str) -> str:
        """A text that may leave: without the key, or anybody's credentials in an address."""
        text = _CREDENTIALS.sub("://***@", text)
        return self._key.scrub(text) if self._key else text

    def gave_up(self, fault: Fault, tries: int) -> AgentError:
        """The last try has failed too."""
        times = "once" if tries == 1 else f"{tries} times, at last"
        text = f"{self._who} was asked {times}: {self._said(fault.text)}."
        return fault.error(self.scrub(f"{text} {_ADVICE[fault.error]}"))

    def too_long(self, wait: float, longest: float) -> ModelBusy:
        """The server asks for more patience than there is."""
        return ModelBusy(
            f"{self._who} asks to wait {wait:.0f} s, and more than {longest:.0f} s is not waited. "
            "Try again then."
        )

    def nobody(self, why: str) -> ModelUnreachable:
        """No connection, before anything was asked."""
        return ModelUnreachable(
            self.scrub(f"Nobody answers at {self._url} ({self._said(why)}). ")
            + "Is the server running, and is the address right?"
        )

    def refused(self, refusal: Refusal) -> AgentError:
        """There is no point in asking again."""
        kind = _CLASSES.get(refusal.reason, ProviderRefuses)
        text = f"{self._what(refusal.reason)}: {self._said(refusal.text) or 'it does not say why'}"
        return kind(self.scrub(f"{text} {_REMEDIES.get(refusal.reason, '')}".strip()))

    def _what(self, reason: Reason) -> str:
        asked_with = f"the key from {self._key.source}" if self._key else "requests without a key"
        match reason:
            case Reason.KEY:
                return f"{self._url} does not take {asked_with}"
            case Reason.MODEL:
                return f"There is no model {self._model!r} at {self._url}"
            case Reason.QUOTA:
                return f"There is nothing left to spend at {self._url} with {asked_with}"
            case Reason.MOVED:
                return f"{self._url} sends requests elsewhere"
            case _:
                return f"{self._who} refuses this request"

    def _said(self, text: str) -> str:
        """The server's words, on one line. Scrubbed before cut: half a key is a secret too."""
        line = " ".join(self.scrub(text).split())
        return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
