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

from ludus.agents.agent import Agent, FinishReason, Reply
from ludus.agents.api_keys import ApiKey, find_key
from ludus.agents.endpoint_url import base_url
from ludus.agents.error_messages import ContextLengthExceeded
from ludus.agents.prices import PriceTable
from ludus.agents.provider import Backoff, ProviderClient
from ludus.agents.response_cache import ResponseCache
from ludus.data.episode import Usage
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, RequestRefused

_RESERVED_FIELDS = frozenset({"model", "messages", "tools", "stream"})


class APIAgent(Agent):
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

    vendor: ClassVar[str]
    """Whose API it is; also whose key and prices are looked up."""
    default_base_url: ClassVar[str]
    """Where the API is, unless an endpoint is given."""

    def __init__(
        self,
        model: str,
        *,
        endpoint: str | None = None,
        key: ApiKey | str | None = None,
        temperature: float | None = None,
        extra: Mapping[str, Any] | None = None,
        concurrency: int = 64,
        call_timeout: float = 300.0,
        retries: int = 8,
        cache: str | Path | None = None,
        prices: PriceTable | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.model = model
        self.endpoint = base_url(endpoint) if endpoint is not None else None
        self.provider = f"{self.vendor}-compatible" if self.endpoint else self.vendor
        self._request_options = _build_request_options(temperature, extra)
        found = ApiKey(key) if isinstance(key, str) else key
        if found is None:
            found = find_key(self.vendor, for_endpoint=self.endpoint is not None)
        self.client = ProviderClient(
            self.endpoint or self.default_base_url,
            model=model,
            key=found,
            headers=self._headers(found),
            concurrency=concurrency,
            call_timeout=call_timeout,
            retries=retries,
            backoff=backoff,
            cache=ResponseCache(cache) if cache is not None else None,
        )
        self._price = (prices or PriceTable.load()).price_for(
            self.vendor, model, endpoint_given=self.endpoint is not None
        )

    @abstractmethod
    def _headers(self, key: ApiKey | None) -> dict[str, str]:
        """What goes with every request."""

    def describe(self) -> JsonObject:
        told = {"provider": self.provider, "model": self.model}
        if self.endpoint:
            told["endpoint"] = self.endpoint
        # Through the scrubber: a field of one's own may hold the key.
        scrubbed: JsonObject = json.loads(
            self.client.scrub(json.dumps(told | self._request_options))
        )
        return scrubbed

    async def prepare(self, environments: Sequence[str] = ()) -> None:
        await self.client.prepare()

    async def close(self) -> None:
        await self.client.close()

    @property
    def concurrency_limit(self) -> int | None:
        return self.client.throttle.limit

    @property
    def retry_after_s(self) -> float:
        return self.client.throttle.pause_remaining_s

    @property
    def has_price(self) -> bool:
        return self._price is not None

    @property
    def faults(self) -> Mapping[str, int]:
        return self.client.faults

    def _request_fields(self) -> JsonObject:
        """The settings as a request holds them: extra fields win."""
        fields = dict(self._request_options)
        extra = fields.pop("extra", {})
        return {**fields, **extra}

    def _with_cost(self, usage: Usage, cached: bool) -> Usage:
        """With its cost. A kept reply cost nothing, but its tokens were read and written."""
        if cached:
            return usage.model_copy(update={"cost": 0.0})
        cost = self._price(usage) if self._price else None
        return usage if cost is None else usage.model_copy(update={"cost": cost})


def reply_from_refusal(error: RequestRefused) -> Reply:
    """The reply that stands for a refusal which is the model's or the messages' doing."""
    finish = (
        FinishReason.LENGTH if isinstance(error, ContextLengthExceeded) else FinishReason.REFUSED
    )
    return Reply(Message(role="assistant"), finish_reason=finish)


def _build_request_options(
    temperature: float | None, extra: Mapping[str, Any] | None
) -> JsonObject:
    """Only what was set: as the description and the request have it."""
    settings: JsonObject = {}
    if temperature is not None:
        if not math.isfinite(temperature) or temperature < 0:
            raise ConfigError(f"A temperature of {temperature} cannot be; give 0 or more.")
        settings["temperature"] = temperature
    if extra:
        settings["extra"] = _validate_extra(dict(extra))
    return settings


def _validate_extra(extra: JsonObject) -> JsonObject:
    if taken := sorted(_RESERVED_FIELDS & set(extra)):
        raise ConfigError(f"The extra field {taken[0]!r} is not free: Ludus sets it itself.")
    try:
        copied: JsonObject = json.loads(json.dumps(extra, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The extra fields cannot be sent as JSON: {error}.") from None
    return copied
