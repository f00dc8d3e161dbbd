"""API keys: where they are found, and how they are kept out of everything that is written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NoReturn
from urllib.parse import quote

from dotenv import dotenv_values, find_dotenv

from ludus.errors import ConfigError

_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_SHARED_VARIABLE = "API_KEY"
_MAX_PLACEHOLDER_CHARS = 3
_MIN_BODY_SCRUB_CHARS = 16


class ApiKey:
    """A secret that shows itself only when asked to: not when printed, logged or pickled."""

    __slots__ = ("_secret", "source")

    def __init__(self, secret: str, source: str = "the key argument") -> None:
        self.source = source
        """The variable that it came from, for messages."""
        self._secret = secret.strip()
        if not self._secret or not self._secret.isprintable() or " " in self._secret:
            raise ConfigError(f"{source} holds no usable key: it is empty or has blanks inside.")
        if not self._secret.isascii():
            raise ConfigError(f"{source} holds no usable key: it has characters outside ASCII.")

    def reveal(self) -> str:
        return self._secret

    def scrub(self, text: str) -> str:
        """A message without the key, however a server may have written it.

        What is as short as "x" is no secret, and would tear words apart.
        """
        if len(self._secret) <= _MAX_PLACEHOLDER_CHARS:
            return text
        for form in (self._secret, json.dumps(self._secret)[1:-1], quote(self._secret, safe="")):
            text = text.replace(form, "***")
        return text

    def scrub_body(self, body: bytes) -> bytes:
        """A server's answer without the key, so that it gets into no episode.

        Only a key that can be no word is looked for: servers of one's own are often given "EMPTY",
        and a model may well say that.
        """
        if len(self._secret) < _MIN_BODY_SCRUB_CHARS:
            return body
        return body.replace(self._secret.encode("ascii"), b"***")

    def __repr__(self) -> str:
        return f"Key({self.source})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A key is not pickled: it would end up in a file.")


def find_key(
    provider: str, variable: str | None = None, *, for_endpoint: bool = False
) -> ApiKey | None:
    """The key from the environment, or from a `.env` in the current folder or above it.

    The environment wins. A server of one's own may need no key, so for an endpoint a missing one
    is None; there API_KEY comes first, so that the provider's own key is not what a stranger gets
    when there is another. A variable that was asked for by name must be there.
    """
    if variable:
        names = [variable]
    elif for_endpoint:
        names = [_SHARED_VARIABLE, _KEY_VARIABLES[provider]]
    else:
        names = [_KEY_VARIABLES[provider], _SHARED_VARIABLE]
    places = (os.environ, _load_dotenv())
    for name in names:
        for place in places:
            if secret := (place.get(name) or "").strip():
                return ApiKey(secret, name)
    if for_endpoint and not variable:
        return None
    raise ConfigError(
        f"No key for {provider}: {names[0]} is neither set in the environment nor in a .env file "
        "of this folder or one above it. Set it in one of the two."
    )


def _load_dotenv() -> Mapping[str, str | None]:
    path = find_dotenv(usecwd=True)
    if not path:
        return {}
    try:
        # Taken as it stands: a "$" in a key is a "$".
        return dotenv_values(path, interpolate=False, encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Mend or remove it.") from None
