"""A cache of API responses on disk, for development: identical requests are answered from it.

Headers, and with them keys, are not part of a request here.
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
    """Hash of a request.

    `sample` tells the members of a group apart: their requests are identical, but they must not
    all get the same reply.
    """
    canonical = json.dumps([method, url, body, sample], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class ResponseCache:
    """A folder of responses, one file each."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The `cache` folder {self.folder} cannot be created: {error.strerror}."
            ) from None

    def get(self, key: str) -> JsonObject | None:
        """The response to this request; an unreadable file counts as absent."""
        try:
            response = from_json(self._path(key).read_bytes())
        except (OSError, ValueError):
            return None
        return response if isinstance(response, dict) else None

    def put(self, key: str, response: str) -> None:
        """Store a response, given as JSON text. Readers see all of it or nothing."""
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
        temporary.write_text(response, encoding="utf-8")
        temporary.replace(path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
