"""Lenient reading of the JSON in a response: servers omit fields, and send null or other types."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from ludus.data.tool_schema import JsonObject


def parse_response_json(body: bytes) -> Any:
    """The JSON value of a response, or None. A lone surrogate becomes a question mark.

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


def response_token_count(value: Any) -> int:
    """A number of tokens in a response; servers omit it or send null."""
    return value if isinstance(value, int) and value > 0 else 0


def response_object(value: Any) -> JsonObject:
    """A JSON object in a response; empty where the server sends something else."""
    return value if isinstance(value, dict) else {}
