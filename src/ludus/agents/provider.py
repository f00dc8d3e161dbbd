"""HTTP client of one model API: timeouts, bounded retries, and a throttle that all calls share.

`provider_errors` classifies responses. The throttle has additive increase and multiplicative
decrease, as in TCP's congestion control: providers do not publish how many concurrent calls they
accept, but reject calls above it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from ludus.agents.api_keys import ApiKey
from ludus.agents.provider_errors import (
    ProviderErrors,
    Refusal,
    RefusalReason,
    TransientFault,
    classify_response,
    connection_error_text,
)
from ludus.data.tool_schema import JsonObject
from ludus.errors import BadReply, ConfigError, ModelTimeout, ModelUnreachable
from ludus.protocol.loopback import is_loopback

_EXAMPLE = "Example: http://localhost:8000/v1."


def base_url(endpoint: str) -> str:
    """The base URL of a provider's routes.

    An endpoint without a path gets `/v1`, as nearly all servers have it. One with credentials, a
    query or a fragment is refused, and not shown in the error: it may hold a secret.
    """
    endpoint = endpoint.strip()
    if any(mark in endpoint for mark in "@?#"):
        raise ConfigError(
            "An endpoint must have no credentials, no query (?) and no fragment (#); set the API "
            f"key instead. {_EXAMPLE}"
        )
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not endpoint.isprintable() or " " in endpoint:
        raise ConfigError(f"The endpoint {endpoint!r} is not a URL like http(s)://HOST. {_EXAMPLE}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def endpoint_proxy(endpoint: str) -> str | None:
    """The proxy that the environment sets for a provider's URL; None for a local one.

    Called once per session: aiohttp's `trust_env` looks it up for every request, in a thread, and
    replaces the key by credentials of ~/.netrc.
    """
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if is_loopback(host) or host in ("0.0.0.0", "::") or proxy_bypass(parts.netloc):
        return None
    proxy = getproxies().get(parts.scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


T = TypeVar("T")

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
        self._session: aiohttp.ClientSession | None = None

    def scrub(self, text: str) -> str:
        """The text without the key."""
        return self._errors.scrub(text)

    async def post(self, path: str, body: JsonObject, parse: Callable[[JsonObject], T]) -> T:
        """Post a request and return its parsed response.

        A response for which `parse` raises `BadReply` is retried: gateways send half a reply when
        the server behind them breaks.
        """
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
        self, path: str, data: bytes, parse: Callable[[JsonObject], T]
    ) -> T | TransientFault:
        async with self.throttle.slot() as epoch:
            response = await self._send(path, data)
            if isinstance(response, TransientFault):
                if response.overloaded:
                    self.throttle.decrease(epoch)
                if (wait := response.retry_after_s) is not None:
                    if wait > MAX_RETRY_AFTER_S:
                        raise self._errors.wait_too_long(wait, MAX_RETRY_AFTER_S)
                    # Other calls would get the same answer, so all of them wait.
                    self.throttle.pause(wait)
                return response
            self.throttle.increase()
        if isinstance(response, Refusal):
            raise self._errors.from_refusal(response)
        try:
            return parse(response)
        except BadReply as error:
            return TransientFault(BadReply, "unreadable", str(error))

    async def _send(self, path: str, data: bytes) -> JsonObject | TransientFault | Refusal:
        try:
            # No redirects: they would send the key to another server.
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
        """Check that the server is reachable and accepts the key, before the first episode.

        Requests the list of models. Not every server has one, so only a refused key counts.
        """
        for retry in range(_PROBE_ATTEMPTS):
            try:
                async with self._get_session().get(
                    f"{self.base_url}/models",
                    headers=self._headers,
                    timeout=aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S),
                    allow_redirects=False,
                ) as response:
                    if response.status in (401, 403):
                        body = await response.read()
                        result = classify_response(response.status, response.headers, body)
                        text = result.text if isinstance(result, Refusal) else ""
                        raise self._errors.from_refusal(Refusal(RefusalReason.KEY, text))
                return
            except TimeoutError:
                return
            except (aiohttp.ClientError, OSError) as error:
                if retry == _PROBE_ATTEMPTS - 1:
                    raise self._errors.unreachable(connection_error_text(error)) from None
                await asyncio.sleep(self._backoff.delay_s(retry))

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


class Throttle:
    """Hands out slots for calls, first come first served.

        async with throttle.slot() as epoch:
            ...
            throttle.increase()  # or throttle.decrease(epoch)

    It starts at the maximum: most providers accept that, and others refuse within one round trip.
    Use it from one event loop.
    """

    def __init__(self, max_limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        if max_limit < 1:
            raise ConfigError(f"`concurrency` must be at least 1, got {max_limit}.")
        self.max_limit = max_limit
        self.in_flight = 0
        self._limit = float(max_limit)
        self._epoch = 0
        """Counts the decreases."""
        self._clock = clock
        self._resumes_at = 0.0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        """The number of concurrent calls that is allowed at the moment."""
        return int(self._limit)

    @property
    def pause_remaining_s(self) -> float:
        """Seconds until the pause ends; 0 without one."""
        return max(0.0, self._resumes_at - self._clock()) if self._resumes_at else 0.0

    def pause(self, seconds: float) -> None:
        """Start no calls for this long. A shorter pause does not end a longer one."""
        self._resumes_at = max(self._resumes_at, self._clock() + seconds)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[int]:
        """Wait for a free slot of the provider; yields the current epoch of the limit."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._grant()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):
                    self._waiters.remove(waiter)
            else:
                # Race: this waiter got a slot and was cancelled before it could run.
                self.release()
            raise
        try:
            yield self._epoch
        finally:
            self.release()

    def release(self) -> None:
        self.in_flight -= 1
        self._grant()

    def _grant(self) -> None:
        """Give all free slots to waiting calls at once, after the pause if there is one."""
        if self._waiters and (pause := self.pause_remaining_s):
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(pause, self._end_pause)
            return
        while self._waiters and self.in_flight < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.in_flight += 1
                waiter.set_result(None)

    def _end_pause(self) -> None:
        self._timer = None
        self._grant()

    def increase(self) -> None:
        """Note a success: raises the limit by 1 per `limit` successes."""
        self._limit = min(float(self.max_limit), self._limit + 1 / self._limit)
        self._grant()

    def decrease(self, epoch: int) -> None:
        """Note an overload: halves the limit, unless that was done after the call began.

        So a hundred calls that are rejected together count once.
        """
        if epoch == self._epoch:
            self._epoch += 1
            self._limit = max(1.0, self._limit / 2)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, in seconds.

    Jitter keeps calls that failed together from coming back together.
    """

    base: float = 0.5
    cap: float = 30.0

    def delay_s(self, retry: int) -> float:
        """A random delay before this retry of a call; the first has the number 0."""
        return random.uniform(0.0, min(self.cap, self.base * 2.0 ** min(retry, 30)))
