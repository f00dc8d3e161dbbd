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

from ludus.data.tool_schema import JsonObject
from ludus.errors import AgentError, BadReply, ModelBusy

_RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})
_CONTEXT_ERROR_STATUSES = frozenset({400, 413, 422, 500})
_MAX_SEARCHED_CHARS = 500

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
    """A try that failed, where the next one may not."""

    error_class: type[AgentError]
    """What it is when it does not pass."""
    kind: str
    """A word for counting: a status, "connection", "timeout", "unreadable"."""
    text: str
    overloaded: bool = False
    """Whether the server is asked too much."""
    retry_after_s: float | None = None
    """The seconds that the server asks for."""


class RefusalReason(StrEnum):
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


_REASON_BY_STATUS = {401: RefusalReason.KEY, 403: RefusalReason.KEY, 404: RefusalReason.MODEL}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that will not be answered."""

    reason: RefusalReason
    text: str


def classify_response(
    status: int, headers: Mapping[str, str], body: bytes
) -> JsonObject | TransientFault | Refusal:
    """The reply, or what is the matter instead."""
    parsed = parse_json(body)
    if status == 200:
        if not isinstance(parsed, dict):
            said = f"what it sent is not a JSON object: {_decode_prefix(body)!r}"
            return TransientFault(BadReply, "unreadable", said)
        if not _is_error_body(parsed):
            return parsed
        # Gateways pass on another server's refusal under a 200 of their own.
        status = _embedded_status(parsed)
    said = _error_message(parsed) or _decode_prefix(body)
    reason = _refusal_reason(status, _searchable_text(parsed, said))
    if reason is None:
        return _transient_fault(status, headers, said)
    return Refusal(reason, said)


def parse_json(body: bytes) -> Any:
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


def parse_retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
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


def token_count(value: Any) -> int:
    """A number of tokens; servers leave them out, or write null."""
    return value if isinstance(value, int) and value > 0 else 0


def _transient_fault(status: int, headers: Mapping[str, str], said: str) -> TransientFault:
    return TransientFault(
        ModelBusy,
        str(status),
        f"it answered {status}{f' ({said})' if said else ''}",
        overloaded=status == 429 or status >= 500,
        retry_after_s=parse_retry_after(headers),
    )


def _refusal_reason(status: int, marks: str) -> RefusalReason | None:
    """Why there is no point in asking again; None where there is one."""
    if status in _CONTEXT_ERROR_STATUSES and _CONTEXT_PATTERN.search(marks):
        return RefusalReason.CONTEXT
    if status == 402 or (status < 500 and _QUOTA_PATTERN.search(marks)):
        return RefusalReason.QUOTA
    if status in _RETRYABLE_STATUSES or status >= 500:
        return None
    if _FILTER_PATTERN.search(marks):
        return RefusalReason.FILTER
    if status < 400:
        return RefusalReason.MOVED
    return _REASON_BY_STATUS.get(status, RefusalReason.REQUEST)


def _is_error_body(parsed: JsonObject) -> bool:
    return bool(parsed.get("error")) or parsed.get("object") == "error"


def _embedded_status(parsed: JsonObject) -> int:
    """The status that an error under a 200 names; without one it is the server's fault."""
    error = parsed.get("error")
    code = (error if isinstance(error, dict) else parsed).get("code")
    try:
        status = int(str(code))
    except ValueError:
        return 500
    return status if 400 <= status < 600 else 500


def _error_message(parsed: Any) -> str:
    """The server's own words, wherever it puts them."""
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    if isinstance(parsed, str):
        return parsed
    if not isinstance(parsed, dict):
        return ""
    for name in ("error", "message", "detail", "msg"):
        if found := parsed.get(name):
            return _error_message(found) or json.dumps(found)
    return ""


def _searchable_text(parsed: Any, said: str) -> str:
    """Where a reason may be told from: not the whole, for some servers echo the request."""
    error = parsed.get("error") if isinstance(parsed, dict) else None
    fields = error if isinstance(error, dict) else parsed if isinstance(parsed, dict) else {}
    metadata = fields.get("metadata")
    names = " ".join(metadata) if isinstance(metadata, dict) else ""
    return f"{fields.get('code')} {fields.get('type')} {names} {said[:_MAX_SEARCHED_CHARS]}"


def _decode_prefix(body: bytes) -> str:
    return body[:2000].decode("utf-8", "replace")
