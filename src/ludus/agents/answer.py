"""What a model server's answer means: a reply, a fault that passes, or a refusal that stays.

Pure functions over status, headers and body. Servers that speak the same API differ most in how
they say no, so all of that is gathered here. Asking again is `provider.py`'s business.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from pydantic_core import from_json

from ludus.data.tools import JsonObject
from ludus.errors import AgentError, BadReply, ModelBusy

_PASSING = frozenset({408, 409, 425, 429})
_MAY_BE_CONTEXT = frozenset({400, 413, 422, 500})
_SAID = 500

_CONTEXT = re.compile(
    r"maximum context length|context_length_exceeded|exceed_context_size|prompt is too long"
    r"|exceeds? the (available|maximum) context|exceed context limit|context window"
    r"|exceeds? the (model's )?context|longer than the model's context|maximum model length"
    r"|input token count|max_new_tokens. must be",
    re.IGNORECASE,
)
_FILTER = re.compile(
    r"content_filter|content_policy_violation|content filtering policy|flagged_input",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"insufficient_quota|credit balance is too low", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fault:
    """A try that failed, where the next one may not."""

    error: type[AgentError]
    """What it is when it does not pass."""
    kind: str
    """A word for counting: a status, "connection", "timeout", "unreadable"."""
    text: str
    pushback: bool = False
    """Whether the server is asked too much."""
    wait: float | None = None
    """The seconds that the server asks for."""


class Reason(StrEnum):
    """Why the next try would be refused as well."""

    KEY = "key"
    MODEL = "model"
    QUOTA = "quota"
    MOVED = "moved"
    CONTEXT = "context"
    """The messages are longer than the model can take."""
    FILTER = "filter"
    """The provider does not want to answer this."""
    REQUEST = "request"


_BY_STATUS = {401: Reason.KEY, 403: Reason.KEY, 404: Reason.MODEL}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that will not be answered."""

    reason: Reason
    text: str


def judge(status: int, headers: Mapping[str, str], body: bytes) -> JsonObject | Fault | Refusal:
    """The reply, or what is the matter instead."""
    parsed = parse(body)
    if status == 200:
        if not isinstance(parsed, dict):
            said = f"what it sent is not a JSON object: {_plain(body)!r}"
            return Fault(BadReply, "unreadable", said)
        if not _is_error(parsed):
            return parsed
        # Gateways pass on another server's refusal under a 200 of their own.
        status = _status_within(parsed)
    said = _said(parsed) or _plain(body)
    reason = _reason(status, _marks(parsed, said))
    if reason is None:
        return _passing(status, headers, said)
    return Refusal(reason, said)


def parse(body: bytes) -> Any:
    """The JSON in it, or None. Half a surrogate pair becomes a question mark.

    Models cut emoji in two, and such text could not be written to any file.
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


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """The seconds to wait, however the server says it; what makes no sense is not said."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        return None if math.isnan(seconds) else max(0.0, seconds)
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", "")).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, moment - (time.time() if now is None else now))


def count(value: Any) -> int:
    """A number of tokens; servers leave them out, or write null."""
    return value if isinstance(value, int) and value > 0 else 0


def _passing(status: int, headers: Mapping[str, str], said: str) -> Fault:
    return Fault(
        ModelBusy,
        str(status),
        f"it answered {status}{f' ({said})' if said else ''}",
        pushback=status == 429 or status >= 500,
        wait=retry_after(headers),
    )


def _reason(status: int, marks: str) -> Reason | None:
    """Why there is no point in asking again; None where there is one."""
    if status in _MAY_BE_CONTEXT and _CONTEXT.search(marks):
        return Reason.CONTEXT
    if status == 402 or (status < 500 and _QUOTA.search(marks)):
        return Reason.QUOTA
    if status in _PASSING or status >= 500:
        return None
    if _FILTER.search(marks):
        return Reason.FILTER
    if status < 400:
        return Reason.MOVED
    return _BY_STATUS.get(status, Reason.REQUEST)


def _is_error(parsed: JsonObject) -> bool:
    return bool(parsed.get("error")) or parsed.get("object") == "error"


def _status_within(parsed: JsonObject) -> int:
    """The status that an error under a 200 names; without one it is the server's fault."""
    error = parsed.get("error")
    code = (error if isinstance(error, dict) else parsed).get("code")
    try:
        status = int(str(code))
    except ValueError:
        return 500
    return status if 400 <= status < 600 else 500


def _said(parsed: Any) -> str:
    """The server's own words, wherever it puts them."""
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    if isinstance(parsed, str):
        return parsed
    if not isinstance(parsed, dict):
        return ""
    for name in ("error", "message", "detail", "msg"):
        if found := parsed.get(name):
            return _said(found) or json.dumps(found)
    return ""


def _marks(parsed: Any, said: str) -> str:
    """Where a reason may be told from: not the whole, for some servers echo the request."""
    error = parsed.get("error") if isinstance(parsed, dict) else None
    fields = error if isinstance(error, dict) else parsed if isinstance(parsed, dict) else {}
    metadata = fields.get("metadata")
    names = " ".join(metadata) if isinstance(metadata, dict) else ""
    return f"{fields.get('code')} {fields.get('type')} {names} {said[:_SAID]}"


def _plain(body: bytes) -> str:
    return body[:2000].decode("utf-8", "replace")
