"""HTTP client of one model API: timeouts, bounded retries, and a throttle that all calls share.

`provider_errors` classifies responses. A cache on disk answers identical requests, for development;
headers, and with them keys, are not part of a request there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic_core import from_json

from ludus.agents.api_keys import ApiKey
from ludus.agents.provider_errors import (
    ProviderErrors,
    Refusal,
    RefusalReason,
    TransientFault,
    classify_response,
    connection_error_text,
)
from ludus.agents.throttle import Backoff, Throttle
from ludus.data.tool_schema import JsonObject
from ludus.errors import BadReply, ConfigError, ModelTimeout, ModelUnreachable
from ludus.protocol.loopback import is_loopback

_EXAMPLE = "Example: http://localhost:8000/v1."


def base_url(endpoint: str) -> str:
    """The URL under which the API's routes are.

    An endpoint without a path gets `/v1`, as nearly all servers have it. One with credentials, a
    query or a fragment is refused, and not shown in the error: it may hold a secret.
    """
    endpoint = endpoint.strip()
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = SplitResult("", "", "", "", ""), None
    unprintable = not endpoint.isprintable() or " " in endpoint
    if parts.scheme not in ("http", "https") or not host or unprintable:
        shown = "" if any(mark in endpoint for mark in "@?#") else f" {endpoint!r}"
        raise ConfigError(f"The endpoint{shown} is not a URL like http(s)://HOST. {_EXAMPLE}")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise ConfigError(
            f"An endpoint must not hold credentials; set the API key instead. {_EXAMPLE}"
        )
    if parts.query or parts.fragment or endpoint[-1] in "?#":
        raise ConfigError(f"An endpoint must not have a query (?) or a fragment (#). {_EXAMPLE}")
    path = parts.path.rstrip("/") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


def endpoint_proxy(endpoint: str) -> str | None:
    """The proxy that environment variables name for an API's URL; None for this machine itself.

    Called once per session: aiohttp's `trust_env` looks it up for every request, in a thread.
    """
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if is_loopback(host) or host in ("0.0.0.0", "::") or proxy_bypass(parts.netloc):
        return None
    proxy = getproxies().get(parts.scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


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


T = TypeVar("T")
ParseReply = Callable[[JsonObject, bool], T]
"""Parses a response; the flag says whether it comes from the response cache."""

MAX_RETRY_AFTER_S = 600.0
_CONNECT_TIMEOUT_S = 30.0
_PROBE_TIMEOUT_S = 10.0
_PROBE_ATTEMPTS = 3


class ProviderClient:
    """Client of a model's API. `faults` counts the faults that were retried, by kind."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        key: ApiKey | None = None,
        headers: Mapping[str, str] | None = None,
        concurrency: int = 64,
        call_timeout: float = 300.0,
        max_retries: int = 8,
        backoff: Backoff | None = None,
        cache: ResponseCache | None = None,
    ) -> None:
        if call_timeout <= 0:
            raise ConfigError(f"`call_timeout` must be positive, got {call_timeout:g}.")
        if max_retries < 0:
            raise ConfigError(f"`max_retries` must be 0 or more, got {max_retries}.")
        self.base_url = base_url
        self.throttle = Throttle(concurrency)
        self.faults: Counter[str] = Counter()
        self._errors = ProviderErrors(model, base_url, key)
        self._key = key
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._call_timeout = call_timeout
        self._max_retries = max_retries
        self._backoff = backoff or Backoff()
        self._cache = cache
        self._session: aiohttp.ClientSession | None = None

    def scrub(self, text: str) -> str:
        """The text without the key."""
        return self._errors.scrub(text)

    async def post(
        self, path: str, body: JsonObject, parse: ParseReply[T], *, sample: int = 0
    ) -> T:
        """Post a request and return its parsed response, from the cache if there is one.

        A response for which `parse` raises `BadReply` is retried: gateways send half a reply when
        the server behind them breaks. `sample` tells identical requests of a group apart.
        """
        if self._cache is None:
            _, value = await self._post_with_retries(path, body, parse)
            return value
        key = request_key("POST", self.base_url + path, body, sample)
        cached = self._cache.get(key)
        if cached is not None:
            try:
                return parse(cached, True)
            except BadReply:
                pass  # Counts as absent.
        response, value = await self._post_with_retries(path, body, parse)
        try:
            self._cache.put(key, json.dumps(response))
        except OSError:  # A full disk must not cost a reply that was paid for.
            self.faults["cache"] += 1
        return value

    async def _post_with_retries(
        self, path: str, body: JsonObject, parse: ParseReply[T]
    ) -> tuple[JsonObject, T]:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        data = text.encode("utf-8", "replace")
        retry = 0
        while True:
            result = await self._attempt(path, data, parse)
            if not isinstance(result, TransientFault):
                return result
            if retry == self._max_retries:
                raise self._errors.retries_exhausted(result, retry + 1)
            self.faults[result.kind] += 1
            await asyncio.sleep(self._backoff.delay_s(retry))
            retry += 1

    async def _attempt(
        self, path: str, data: bytes, parse: ParseReply[T]
    ) -> tuple[JsonObject, T] | TransientFault:
        async with self.throttle.slot() as slot:
            response = await self._send(path, data)
            if isinstance(response, TransientFault):
                if response.overloaded:
                    slot.report_overload()
                if (wait := response.retry_after_s) is not None:
                    if wait > MAX_RETRY_AFTER_S:
                        raise self._errors.wait_too_long(wait, MAX_RETRY_AFTER_S)
                    # Other calls would get the same answer, so all of them wait.
                    self.throttle.pause(wait)
                return response
            slot.report_success()
        if isinstance(response, Refusal):
            raise self._errors.from_refusal(response)
        try:
            return response, parse(response, False)
        except BadReply as error:
            return TransientFault(BadReply, "unreadable", str(error))

    async def _send(self, path: str, data: bytes) -> JsonObject | TransientFault | Refusal:
        try:
            # No redirects: they would carry the key to wherever they point.
            async with self._get_session().post(
                self.base_url + path, data=data, headers=self._headers, allow_redirects=False
            ) as response:
                body = await response.read()
                if self._key is not None:
                    body = self._key.scrub_body(body)
                return classify_response(response.status, response.headers, body)
        except aiohttp.ConnectionTimeoutError:
            return TransientFault(ModelUnreachable, "connection", "the connection timed out")
        except TimeoutError:
            text = f"no reply within {self._call_timeout:g} s"
            return TransientFault(ModelTimeout, "timeout", text)
        except (aiohttp.ClientError, OSError) as error:
            text = f"the connection failed ({connection_error_text(error)})"
            return TransientFault(ModelUnreachable, "connection", text)

    def _get_session(self) -> aiohttp.ClientSession:
        # Created at the first use, because it belongs to the running event loop.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=self._call_timeout, sock_connect=_CONNECT_TIMEOUT_S
                ),
                proxy=endpoint_proxy(self.base_url),
            )
        return self._session

    async def prepare(self) -> None:
        """Check that the server is reachable and accepts the key, before the first episode."""
        reason = ""
        for retry in range(_PROBE_ATTEMPTS):
            if retry:
                await asyncio.sleep(self._backoff.delay_s(retry - 1))
            try:
                return await self._probe()
            except (aiohttp.ClientError, OSError) as error:
                reason = connection_error_text(error)
        raise self._errors.unreachable(reason)

    async def _probe(self) -> None:
        """Request the list of models. Not every server has one, so only a refused key counts."""
        try:
            async with self._get_session().get(
                f"{self.base_url}/models",
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S),
                allow_redirects=False,
            ) as response:
                if response.status not in (401, 403):
                    return
                result = classify_response(response.status, response.headers, await response.read())
        except TimeoutError:
            return
        text = result.text if isinstance(result, Refusal) else ""
        raise self._errors.from_refusal(Refusal(RefusalReason.KEY, text))

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
