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

from ludus.agents.address import proxy_for
from ludus.agents.answer import Fault, Reason, Refusal, judge
from ludus.agents.cache import Cache, request_id
from ludus.agents.complaint import Complaints
from ludus.agents.keys import Key
from ludus.agents.throttle import Throttle
from ludus.data.tools import JsonObject
from ludus.errors import BadReply, ConfigError, ModelTimeout, ModelUnreachable

T = TypeVar("T")
Read = Callable[[JsonObject, bool], T]
"""Makes something of a reply; it is told whether the reply was kept from an earlier run."""

LONGEST_WAIT = 600.0
_CONNECT_TIMEOUT = 30.0
_PREPARE_TIMEOUT = 10.0
_PREPARE_TRIES = 3


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next try: up to `base` seconds, then twice that, up to `cap`.

    Full jitter: calls that failed together must not come back together.
    """

    base: float = 0.5
    cap: float = 30.0

    def before(self, retry: int) -> float:
        return random.uniform(0.0, min(self.cap, self.base * 2.0 ** min(retry, 30)))


class Provider:
    """A model's API. `faults` counts what went wrong and was tried again, by kind."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
        concurrency: int = 64,
        call_timeout: float = 300.0,
        retries: int = 8,
        backoff: Backoff | None = None,
        cache: Cache | None = None,
    ) -> None:
        if call_timeout <= 0 or retries < 0:
            raise ConfigError(
                f"A call_timeout of {call_timeout} s with {retries} retries cannot be: give more "
                "than 0 seconds, and 0 retries or more."
            )
        self.base_url = base_url
        self.throttle = Throttle(concurrency)
        self.faults: Counter[str] = Counter()
        self._complaints = Complaints(model, base_url, key)
        self._key = key
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._call_timeout = call_timeout
        self._retries = retries
        self._backoff = backoff or Backoff()
        self._cache = cache
        self._session: aiohttp.ClientSession | None = None

    def scrub(self, text: str) -> str:
        """A text that may leave: without the key."""
        return self._complaints.scrub(text)

    async def ask(self, path: str, body: JsonObject, read: Read[T], *, sample: int = 0) -> T:
        """Post it, and read the reply.

        A reply that `read` cannot take (it raises `BadReply`) is a fault as others are: gateways
        send half a reply when the server behind them breaks, and the next one is whole.
        """
        if self._cache is None:
            _, value = await self._ask(path, body, read)
            return value
        identity = request_id("POST", self.base_url + path, body, sample)
        kept = self._cache.get(identity)
        if kept is not None:
            try:
                return read(kept, True)
            except BadReply:
                pass  # it counts as absent
        reply, value = await self._ask(path, body, read)
        self._keep(self._cache, identity, reply)
        return value

    def _keep(self, cache: Cache, identity: str, reply: JsonObject) -> None:
        try:
            cache.put(identity, json.dumps(reply))
        except OSError:  # a full disk costs a convenience, not a reply that was paid for
            self.faults["cache"] += 1

    async def _ask(self, path: str, body: JsonObject, read: Read[T]) -> tuple[JsonObject, T]:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        data = text.encode("utf-8", "replace")
        retry = 0
        while True:
            outcome = await self._try(path, data, read)
            if not isinstance(outcome, Fault):
                return outcome
            if retry == self._retries:
                raise self._complaints.gave_up(outcome, retry + 1)
            self.faults[outcome.kind] += 1
            await asyncio.sleep(self._backoff.before(retry))
            retry += 1

    async def _try(self, path: str, data: bytes, read: Read[T]) -> tuple[JsonObject, T] | Fault:
        async with self.throttle.slot() as slot:
            answer = await self._post(path, data)
            if isinstance(answer, Fault):
                if answer.pushback:
                    slot.pushed_back()
                self._obey(answer.wait)
                return answer
            slot.succeeded()
        if isinstance(answer, Refusal):
            raise self._complaints.refused(answer)
        try:
            return answer, read(answer, False)
        except BadReply as error:
            return Fault(BadReply, "unreadable", str(error))

    def _obey(self, wait: float | None) -> None:
        """Let all calls wait as long as the server asks one of them to."""
        if wait is None:
            return
        if wait > LONGEST_WAIT:
            raise self._complaints.too_long(wait, LONGEST_WAIT)
        self.throttle.pause(wait)

    async def _post(self, path: str, data: bytes) -> JsonObject | Fault | Refusal:
        try:
            # Not followed: a redirect would carry the key to wherever it points.
            async with self._open().post(
                self.base_url + path, data=data, headers=self._headers, allow_redirects=False
            ) as response:
                body = await response.read()
                if self._key is not None:
                    body = self._key.scrub_body(body)
                return judge(response.status, response.headers, body)
        except aiohttp.ConnectionTimeoutError:
            return Fault(ModelUnreachable, "connection", "no connection could be made in time")
        except TimeoutError:
            return Fault(ModelTimeout, "timeout", f"no reply within {self._call_timeout:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Fault(ModelUnreachable, "connection", f"the connection failed ({_told(error)})")

    def _open(self) -> aiohttp.ClientSession:
        # Made here: it belongs to the event loop that is running.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=self._call_timeout, sock_connect=_CONNECT_TIMEOUT
                ),
                proxy=proxy_for(self.base_url),
            )
        return self._session

    async def prepare(self) -> None:
        """Make sure that somebody is there and takes the key, before anything is played.

        Not every server lists its models, so any answer but a refused key will do.
        """
        why = ""
        for retry in range(_PREPARE_TRIES):
            if retry:
                await asyncio.sleep(self._backoff.before(retry - 1))
            try:
                return await self._look()
            except (aiohttp.ClientError, OSError) as error:
                why = _told(error)
        raise self._complaints.nobody(why)

    async def _look(self) -> None:
        try:
            async with self._open().get(
                f"{self.base_url}/models",
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=_PREPARE_TIMEOUT),
                allow_redirects=False,
            ) as response:
                if response.status not in (401, 403):
                    return
                answer = judge(response.status, response.headers, await response.read())
        except TimeoutError:
            return
        said = answer.text if isinstance(answer, Refusal) else ""
        raise self._complaints.refused(Refusal(Reason.KEY, said))

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


def _told(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__
