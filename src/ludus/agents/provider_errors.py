"""What a provider's response means, and errors of one line without secrets.

A response is a reply, a transient fault, or a final refusal. Servers that speak the same API differ
most in how they report errors; all of that is here. They also omit fields, and send null or other
types.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from pydantic_core import from_json

from ludus.agents.api_keys import ApiKey
from ludus.data.tool_schema import JsonObject
from ludus.errors import (
    AgentError,
    BadReply,
    ModelBusy,
    ModelTimeout,
    ModelUnreachable,
    ProviderRefuses,
    RequestRefused,
)


def parse_response_json(body: bytes) -> object:
    """Parse a provider's JSON response, None if it is invalid; a lone surrogate becomes "?".

    Models split emoji, and text with half a surrogate pair could not be written to a file.
    """
    try:
        return from_json(body)
    except ValueError:
        pass
    try:
        whole = json.dumps(json.loads(body), ensure_ascii=False)
        return from_json(whole.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def response_token_count(value: object) -> int:
    """A number of tokens in a response; servers omit it or send null."""
    return value if isinstance(value, int) and value > 0 else 0


def response_object(value: object) -> JsonObject:
    """A JSON object in a response; empty if the server sends something else."""
    return value if isinstance(value, dict) else {}


_RETRYABLE_STATUSES = (408, 409, 425, 429)
_CONTEXT_ERROR_STATUSES = (400, 413, 422, 500)
_MAX_SEARCHED_CHARS = 500
_MAX_BODY_BYTES_SHOWN = 2000

_CONTEXT_PATTERN = re.compile(
    r"maximum context length|context_length_exceeded|exceed_context_size|prompt is too long"
    r"|exceeds? the (available|maximum) context|exceed context limit|context window"
    r"|exceeds? the (model's )?context|longer than the model's context|maximum model length"
    r"|input token count|max_new_tokens. must be",
    re.IGNORECASE,
)
_FILTER_PATTERN = re.compile(
    r"content_filter|content_policy_violation|content filtering policy|flagged_input",
    re.IGNORECASE,
)
_QUOTA_PATTERN = re.compile(r"insufficient_quota|credit balance is too low", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TransientFault:
    """A failed attempt that may succeed when it is repeated."""

    error_class: type[AgentError]
    """What to raise when retries do not help."""
    kind: str
    """For counting: a status, "connection", "timeout" or "unreadable"."""
    text: str
    overloaded: bool = False
    """Whether to send fewer requests at once."""
    retry_after_s: float | None = None


class ContextLengthExceeded(RequestRefused):
    """The messages are longer than the model's context. Agents turn it into a reply."""


class ContentFiltered(RequestRefused):
    """The provider's content filter refused the request. Agents turn it into a reply."""


_REFUSED = "{model} at {url} refuses this request"


class RefusalReason(Enum):
    """Why repeating a request would not help: the error, what it says, and what to do."""

    KEY = (ProviderRefuses, "{url} does not accept {key}", "Check the key and its permissions.")
    MODEL = (
        ProviderRefuses,
        "There is no model {model!r} at {url}",
        "Check the model's name and the URL.",
    )
    QUOTA = (
        ProviderRefuses,
        "The quota at {url} is used up for {key}",
        "Check the account's balance and limits.",
    )
    MOVED = (
        ProviderRefuses,
        "{url} redirects requests elsewhere",
        "Use the URL that it redirects to.",
    )
    CONTEXT = (ContextLengthExceeded, _REFUSED, "")
    FILTER = (ContentFiltered, _REFUSED, "")
    REQUEST = (RequestRefused, _REFUSED, "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that the server will not answer."""

    reason: RefusalReason
    text: str


def classify_response(
    status: int, headers: Mapping[str, str], body: bytes
) -> JsonObject | TransientFault | Refusal:
    """Return the JSON of a response, or the error of the provider."""
    parsed = parse_response_json(body)
    body_text = body[:_MAX_BODY_BYTES_SHOWN].decode("utf-8", "replace")
    if status == 200:
        if not isinstance(parsed, dict):
            text = f"the response is not a JSON object: {body_text!r}"
            return TransientFault(BadReply, "unreadable", text)
        if not parsed.get("error") and parsed.get("object") != "error":
            return parsed
        # Gateways pass on another server's error under their own status 200.
        status = 500
        with suppress(ValueError):
            code = int(str((response_object(parsed.get("error")) or parsed).get("code")))
            status = code if 400 <= code < 600 else 500
    message = _error_message(parsed) or body_text
    # Not the whole body is searched, as some servers echo the request.
    fields = response_object(parsed)
    fields = response_object(fields.get("error")) or fields
    names = " ".join(response_object(fields.get("metadata")))
    searched = f"{fields.get('code')} {fields.get('type')} {names} {message[:_MAX_SEARCHED_CHARS]}"
    if (reason := _refusal_reason(status, searched)) is not None:
        return Refusal(reason, message)
    return TransientFault(
        ModelBusy,
        str(status),
        f"it answered {status}{f' ({message})' if message else ''}",
        overloaded=status == 429 or status >= 500,
        retry_after_s=parse_retry_after(headers),
    )


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse the seconds to wait after an error, given in (milli)seconds; None if invalid."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            seconds = float(headers.get(name, "")) / unit
            return None if math.isnan(seconds) else max(0.0, seconds)
    return None


def _refusal_reason(status: int, text: str) -> RefusalReason | None:
    """Why a retry would not help; None if it may."""
    if status in _CONTEXT_ERROR_STATUSES and _CONTEXT_PATTERN.search(text):
        return RefusalReason.CONTEXT
    if status == 402 or (status < 500 and _QUOTA_PATTERN.search(text)):
        return RefusalReason.QUOTA
    if status in _RETRYABLE_STATUSES or status >= 500:
        return None
    if _FILTER_PATTERN.search(text):
        return RefusalReason.FILTER
    if status < 400:
        return RefusalReason.MOVED
    by_status = {401: RefusalReason.KEY, 403: RefusalReason.KEY, 404: RefusalReason.MODEL}
    return by_status.get(status, RefusalReason.REQUEST)


def _error_message(parsed: object) -> str:
    """The server's message, from any of the usual fields."""
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    if isinstance(parsed, str):
        return parsed
    if not isinstance(parsed, dict):
        return ""
    for name in ("error", "message", "detail", "msg"):
        if value := parsed.get(name):
            return _error_message(value) or json.dumps(value)
    return ""


_MAX_MESSAGE_CHARS = 300
_URL_CREDENTIALS = re.compile(r"://[^/\s@]*@")


_HINT_BY_ERROR: dict[type[AgentError], str] = {
    ModelBusy: "Lower `concurrency`, or try again later.",
    ModelUnreachable: "Check the connection, and whether the server is up.",
    ModelTimeout: "Raise `call_timeout`, or allow fewer tokens.",
    BadReply: "Check that the URL belongs to a chat API.",
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
        error_class: type[AgentError]
        error_class, headline, hint = refusal.reason.value
        key = f"the key from {self._key.source}" if self._key else "requests without a key"
        headline = headline.format(model=self._model, url=self._url, key=key)
        details = self._one_line(refusal.text) or "no reason given."
        return error_class(self.scrub(f"{headline}: {details} {hint}".strip()))

    def _one_line(self, text: str) -> str:
        """The server's message on one line. Scrubbed before it is cut: half a key is a secret."""
        line = " ".join(self.scrub(text).split())
        return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[: _MAX_MESSAGE_CHARS - 3]}..."


def connection_error_text(error: Exception) -> str:
    """Why a connection to a provider failed, in a few words."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__
