"""What agents behind a provider's API have in common: settings, prices, and who they say they are.

How a request and a reply look is for each API's own module to say.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ludus.agents.address import base_url
from ludus.agents.agent import Agent, Finish, Reply
from ludus.agents.cache import Cache
from ludus.agents.complaint import ContextFull
from ludus.agents.keys import Key, find_key
from ludus.agents.prices import Prices
from ludus.agents.provider import Backoff, Provider
from ludus.data.episode import Usage
from ludus.data.messages import Message
from ludus.data.tools import JsonObject
from ludus.errors import ConfigError, RequestRefused

_RESERVED = frozenset({"model", "messages", "tools", "stream"})


class RemoteAgent(Agent):
    """A model behind an HTTP API.

    Args:
        model: its name, as the provider writes it.
        endpoint: the address of another server that speaks the same API.
        key: the key; found in the environment or a `.env` if not given.
        temperature: left to the provider if not given.
        extra: more fields for every request, as they are.
        concurrency: the most calls under way at once; pushback makes it fewer for a while.
        call_timeout: seconds that one try may take.
        retries: how often a call that failed is tried again.
        cache: a folder; identical requests are answered from it, and cost nothing.
        prices: what models cost; the usual places if not given.
        backoff: how long to wait between tries.
    """

    family: ClassVar[str]
    """Whose API it is; also whose key and prices are looked up."""
    home: ClassVar[str]
    """Where the API is, unless an endpoint is given."""

    def __init__(
        self,
        model: str,
        *,
        endpoint: str | None = None,
        key: Key | str | None = None,
        temperature: float | None = None,
        extra: Mapping[str, Any] | None = None,
        concurrency: int = 64,
        call_timeout: float = 300.0,
        retries: int = 8,
        cache: str | Path | None = None,
        prices: Prices | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.model = model
        self.endpoint = base_url(endpoint) if endpoint is not None else None
        self.provider = f"{self.family}-compatible" if self.endpoint else self.family
        self._settings = _settings(temperature, extra)
        found = Key(key) if isinstance(key, str) else key
        if found is None:
            found = find_key(self.family, for_endpoint=self.endpoint is not None)
        self.api = Provider(
            self.endpoint or self.home,
            model=model,
            key=found,
            headers=self._headers(found),
            concurrency=concurrency,
            call_timeout=call_timeout,
            retries=retries,
            backoff=backoff,
            cache=Cache(cache) if cache is not None else None,
        )
        self._price = (prices or Prices.load()).of(
            self.family, model, endpoint_given=self.endpoint is not None
        )

    @abstractmethod
    def _headers(self, key: Key | None) -> dict[str, str]:
        """What goes with every request."""

    def describe(self) -> JsonObject:
        told = {"provider": self.provider, "model": self.model}
        if self.endpoint:
            told["endpoint"] = self.endpoint
        # Through the scrubber: a field of one's own may hold the key.
        scrubbed: JsonObject = json.loads(self.api.scrub(json.dumps(told | self._settings)))
        return scrubbed

    async def prepare(self, environments: Sequence[str] = ()) -> None:
        await self.api.prepare()

    async def close(self) -> None:
        await self.api.close()

    @property
    def level(self) -> int | None:
        return self.api.throttle.level

    @property
    def pause(self) -> float:
        return self.api.throttle.pause_left

    @property
    def priced(self) -> bool:
        return self._price is not None

    @property
    def faults(self) -> Mapping[str, int]:
        return self.api.faults

    def _fields(self) -> JsonObject:
        """The settings as a request holds them: extra fields win."""
        fields = dict(self._settings)
        extra = fields.pop("extra", {})
        return {**fields, **extra}

    def _priced(self, usage: Usage, kept: bool) -> Usage:
        """With its cost. A kept reply cost nothing, but its tokens were read and written."""
        if kept:
            return usage.model_copy(update={"cost": 0.0})
        cost = self._price(usage) if self._price else None
        return usage if cost is None else usage.model_copy(update={"cost": cost})


def stopped(error: RequestRefused) -> Reply:
    """The reply that stands for a refusal which is the model's or the messages' doing."""
    finish = Finish.LENGTH if isinstance(error, ContextFull) else Finish.REFUSED
    return Reply(Message(role="assistant"), finish=finish)


def _settings(temperature: float | None, extra: Mapping[str, Any] | None) -> JsonObject:
    """Only what was set: as the description and the request have it."""
    settings: JsonObject = {}
    if temperature is not None:
        if not math.isfinite(temperature) or temperature < 0:
            raise ConfigError(f"A temperature of {temperature} cannot be; give 0 or more.")
        settings["temperature"] = temperature
    if extra:
        settings["extra"] = _checked(dict(extra))
    return settings


def _checked(extra: JsonObject) -> JsonObject:
    if taken := sorted(_RESERVED & set(extra)):
        raise ConfigError(f"The extra field {taken[0]!r} is not free: Ludus sets it itself.")
    try:
        copied: JsonObject = json.loads(json.dumps(extra, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The extra fields cannot be sent as JSON: {error}.") from None
    return copied
