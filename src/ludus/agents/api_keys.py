"""API keys: finding them, and keeping them out of logs, errors and files."""

from __future__ import annotations

import json
import os
from typing import NoReturn
from urllib.parse import quote

from dotenv import dotenv_values, find_dotenv

from ludus.errors import ConfigError, MissingCredentials

_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
API_PROVIDERS = tuple(_KEY_VARIABLES)
_SHARED_VARIABLE = "API_KEY"
_MAX_PLACEHOLDER_CHARS = 3
"""Keys up to this length are placeholders such as "x", and no secrets."""
_MIN_BODY_SCRUB_CHARS = 16
"""Shorter keys may be ordinary words that a model says."""


class ApiKey:
    """A secret that is neither printed nor pickled; `reveal` returns it."""

    __slots__ = ("_secret", "source")

    def __init__(self, secret: str, source: str = "the key argument") -> None:
        self.source = source
        """The variable that it came from, for error messages."""
        self._secret = secret.strip()
        if not self._secret or not self._secret.isprintable() or " " in self._secret:
            raise ConfigError(f"{source} is not a valid key: it is empty or contains blanks.")
        if not self._secret.isascii():
            raise ConfigError(f"{source} is not a valid key: it contains characters outside ASCII.")

    def reveal(self) -> str:
        return self._secret

    def scrub(self, text: str) -> str:
        """The text without the key, in any form that a server may echo."""
        if len(self._secret) > _MAX_PLACEHOLDER_CHARS:
            secret = self._secret
            for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe="")):
                text = text.replace(form, "***")
        return text

    def scrub_body(self, body: bytes) -> bytes:
        """A response without the key, so that no episode holds it.

        Short keys are left alone: local servers are often given "EMPTY", and a model may say that.
        """
        if len(self._secret) < _MIN_BODY_SCRUB_CHARS:
            return body
        return self.scrub(body.decode("latin-1")).encode("latin-1")

    def __repr__(self) -> str:
        return f"ApiKey({self.source})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("An API key cannot be pickled: it would end up in a file.")


def find_api_key(provider: str, *, for_endpoint: bool = False) -> ApiKey | None:
    """Find the API key in the environment, or else in a `.env` file here or above.

    For an endpoint, which may be a local server without a key, a missing one is None, and API_KEY
    takes precedence, so that the provider's own key is not sent to another server.
    """
    names = [_KEY_VARIABLES[provider], _SHARED_VARIABLE]
    for name in reversed(names) if for_endpoint else names:
        if secret := find_variable(name):
            return ApiKey(secret, name)
    if for_endpoint:
        return None
    raise MissingCredentials(
        f"No API key for {provider}. Set {names[0]} in the environment or in a .env file of this "
        "folder or one above it."
    )


def find_variable(name: str) -> str | None:
    """Find a variable in the environment, or else in a `.env` file; None if it is empty."""
    path = find_dotenv(usecwd=True)
    try:
        # No interpolation: a key may contain "$".
        dotenv = dotenv_values(path, interpolate=False, encoding="utf-8-sig") if path else {}
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Fix or remove it.") from None
    values = (source.get(name) for source in (os.environ, dotenv))
    return next((text for value in values if (text := (value or "").strip())), None)
