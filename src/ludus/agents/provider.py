"""One JSON request to a model's API, and what it takes to get it answered.

Deadlines, bounded retries, and the throttle that all calls share. What stands in a request or a
reply is the agents' business; what a refusal means is `answer.py`'s, how it is said
`complaint.py`'s.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from ludus.agents.api_keys import ApiKey
from ludus.agents.endpoint_url import proxy_for
from ludus.agents.error_messages import ProviderErrors
from ludus.agents.response_cache import ResponseCache, request_key
from ludus.agents.response_errors import Refusal, RefusalReason, TransientFault, classify_response
from ludus.agents.throttle import Throttle
from ludus.data.tool_schema import JsonObject
from ludus.errors import BadReply, ConfigError, ModelTimeout, ModelUnreachable

T = TypeVar("T")
ParseReply = Callable[[JsonObject, bool], T]
"""Makes something of a reply; it is told whether the reply was kept from an earlier run."""

MAX_RETRY_AFTER_S = 600.0
_CONNECT_TIMEOUT_S = 30.0
_PROBE_TIMEOUT_S = 10.0
_PROBE_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next try: up to `base` seconds, then twice that, up to `cap`.

    Full jitter: calls that failed together must not come back together.
    """

    base: float = 0.5
    cap: float = 30.0

    def delay_s(self, retry: int) -> float:
        return random.uniform(0.0, min(self.cap, self.base * 2.0 ** min(retry, 30)))


class ProviderClient:
    """A model's API. `faults` counts what went wrong and was tried again, by kind."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        key: ApiKey | None = None,
        headers: Mapping[str, str] | None = None,
        concurrency: int = 64,
        call_timeout: float = 300.0,
        retries: int = 8,
        backoff: Backoff | None = None,
        cache: ResponseCache | None = None,
    ) -> None:
        if call_timeout <= 0 or retries < 0:
            raise ConfigError(
                f"A call_timeout of {call_timeout} s with {retries} retries cannot be: give more "
                "than 0 seconds, and 0 retries or more."
            )
        self.base_url = base_url
        self.throttle = Throttle(concurrency)
        self.faults: Counter[str] = Counter()
        self._errors = ProviderErrors(model, base_url, key)
        self._key = key
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._call_timeout = call_timeout
        self._retries = retries
        self._backoff = backoff or Backoff()
        self._cache = cache
        self._session: aiohttp.ClientSession | None = None

    def scrub(self, text: str) -> str:
        """A text that may leave: without the key."""
        return self._errors.scrub(text)

    async def post(
        self, path: str, body: JsonObject, parse: ParseReply[T], *, sample: int = 0
    ) -> T:
        """Post it, and read the reply.

        A reply that `read` cannot take (it raises `BadReply`) is a fault as others are: gateways
        send half a reply when the server behind them breaks, and the next one is whole.
        """
        if self._cache is None:
            _, value = await self._post_with_retries(path, body, parse)
            return value
        identity = request_key("POST", self.base_url + path, body, sample)
        kept = self._cache.get(identity)
        if kept is not None:
            try:
                return parse(kept, True)
            except BadReply:
                pass  # it counts as absent
        reply, value = await self._post_with_retries(path, body, parse)
        self._store(self._cache, identity, reply)
        return value

    def _store(self, cache: ResponseCache, identity: str, reply: JsonObject) -> None:
        try:
            cache.put(identity, json.dumps(reply))
        except OSError:  # a full disk costs a convenience, not a reply that was paid for
            self.faults["cache"] += 1

    async def _post_with_retries(
        self, path: str, body: JsonObject, parse: ParseReply[T]
    ) -> tuple[JsonObject, T]:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        data = text.encode("utf-8", "replace")
        retry = 0
        while True:
            outcome = await self._attempt(path, data, parse)
            if not isinstance(outcome, TransientFault):
                return outcome
            if retry == self._retries:
                raise self._errors.retries_exhausted(outcome, retry + 1)
            self.faults[outcome.kind] += 1
            await asyncio.sleep(self._backoff.delay_s(retry))
            retry += 1

    async def _attempt(
        self, path: str, data: bytes, parse: ParseReply[T]
    ) -> tuple[JsonObject, T] | TransientFault:
        async with self.throttle.slot() as slot:
            answer = await self._send(path, data)
            if isinstance(answer, TransientFault):
                if answer.overloaded:
                    slot.report_overload()
                self._pause_all(answer.retry_after_s)
                return answer
            slot.report_success()
        if isinstance(answer, Refusal):
            raise self._errors.from_refusal(answer)
        try:
            return answer, parse(answer, False)
        except BadReply as error:
            return TransientFault(BadReply, "unreadable", str(error))

    def _pause_all(self, wait: float | None) -> None:
        """Let all calls wait as long as the server asks one of them to."""
        if wait is None:
            return
        if wait > MAX_RETRY_AFTER_S:
            raise self._errors.wait_too_long(wait, MAX_RETRY_AFTER_S)
        self.throttle.pause(wait)

    async def _send(self, path: str, data: bytes) -> JsonObject | TransientFault | Refusal:
        try:
            # Not followed: a redirect would carry the key to wherever it points.
            async with self._get_session().post(
                self.base_url + path, data=data, headers=self._headers, allow_redirects=False
            ) as response:
                body = await response.read()
                if self._key is not None:
                    body = self._key.scrub_body(body)
                return classify_response(response.status, response.headers, body)
        except aiohttp.ConnectionTimeoutError:
            return TransientFault(
                ModelUnreachable, "connection", "no connection could be made in time"
            )
        except TimeoutError:
            return TransientFault(
                ModelTimeout, "timeout", f"no reply within {self._call_timeout:g} s"
            )
        except (aiohttp.ClientError, OSError) as error:
            return TransientFault(
                ModelUnreachable, "connection", f"the connection failed ({_describe_error(error)})"
            )

    def _get_session(self) -> aiohttp.ClientSession:
        # Made here: it belongs to the event loop that is running.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=self._call_timeout, sock_connect=_CONNECT_TIMEOUT_S
                ),
                proxy=proxy_for(self.base_url),
            )
        return self._session

    async def prepare(self) -> None:
        """Make sure that somebody is there and takes the key, before anything is played.

        Not every server lists its models, so any answer but a refused key will do.
        """
        why = ""
        for retry in range(_PROBE_ATTEMPTS):
            if retry:
                await asyncio.sleep(self._backoff.delay_s(retry - 1))
            try:
                return await self._probe()
            except (aiohttp.ClientError, OSError) as error:
                why = _describe_error(error)
        raise self._errors.unreachable(why)

    async def _probe(self) -> None:
        try:
            async with self._get_session().get(
                f"{self.base_url}/models",
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S),
                allow_redirects=False,
            ) as response:
                if response.status not in (401, 403):
                    return
                answer = classify_response(response.status, response.headers, await response.read())
        except TimeoutError:
            return
        said = answer.text if isinstance(answer, Refusal) else ""
        raise self._errors.from_refusal(Refusal(RefusalReason.KEY, said))

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


def _describe_error(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__
