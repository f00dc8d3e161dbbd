"""Replies on disk: the same request is answered without asking again, for development.

What a request is and what its reply means is the caller's business. Headers, and with them keys,
never come here.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

from pydantic_core import from_json

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError


def request_key(method: str, url: str, body: JsonObject, sample: int) -> str:
    """What makes two requests the same.

    The sample number tells the members of a group apart: they ask the same and must not all get
    the same reply.
    """
    canonical = json.dumps([method, url, body, sample], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class ResponseCache:
    """A folder of replies, one file each."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{self.folder} cannot hold cached replies: {error.strerror}. Name another folder."
            ) from None

    def get(self, key: str) -> JsonObject | None:
        """The reply to this request; what cannot be read counts as absent."""
        try:
            reply = from_json(self._path(key).read_bytes())
        except (OSError, ValueError):
            return None
        return reply if isinstance(reply, dict) else None

    def put(self, key: str, reply: str) -> None:
        """Keep a reply, as JSON text. Readers see all of it or nothing."""
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
        draft.write_text(reply, encoding="utf-8")
        draft.replace(path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
