"""What the agents behind a provider's HTTP API have in common: options, key, prices, client."""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from ludus.agents.agent import NO_ENVIRONMENTS, Agent, EnvironmentTools, FinishReason, Reply
from ludus.agents.api_keys import ApiKey, find_key
from ludus.agents.prices import PriceTable
from ludus.agents.provider import ProviderClient, base_url
from ludus.agents.provider_errors import ContextLengthExceeded
from ludus.agents.throttle import Backoff
from ludus.data.episode import Usage
from ludus.data.messages import Call, Function, Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, RequestRefused

_RESERVED_FIELDS = frozenset({"model", "messages", "tools", "stream"})


class APIAgent(Agent):
    """A model behind an HTTP API.

    Args:
        model: its name at the provider.
        endpoint: URL of another server with the same API.
        key: API key; default: from the environment or a `.env` file.
        temperature: default: the provider's.
        extra: additional fields of every request, sent unchanged.
        concurrency: the most calls at once; lowered for a while when the provider is overloaded.
        call_timeout: seconds per attempt.
        max_retries: how often a failed call is retried.
        prices: default: the user's price file and the public list.
        backoff: how long to wait between attempts.
    """

    vendor: ClassVar[str]
    """Selects the key's variable and the prices."""
    default_base_url: ClassVar[str]

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
        max_retries: int = 8,
        prices: PriceTable | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.model = model
        self.endpoint = base_url(endpoint) if endpoint is not None else None
        self.provider = f"{self.vendor}-compatible" if self.endpoint else self.vendor
        self._request_options = _build_request_options(temperature, extra)
        if isinstance(key, str):
            key = ApiKey(key)
        elif key is None:
            key = find_key(self.vendor, for_endpoint=self.endpoint is not None)
        self.client = ProviderClient(
            self.endpoint or self.default_base_url,
            model=model,
            key=key,
            headers=self._headers(key),
            concurrency=concurrency,
            call_timeout=call_timeout,
            max_retries=max_retries,
            backoff=backoff,
        )
        self._price = (prices or PriceTable.load()).price_for(
            self.vendor, model, endpoint_given=self.endpoint is not None
        )

    @abstractmethod
    def _headers(self, key: ApiKey | None) -> dict[str, str]:
        """Headers of every request."""

    def describe(self) -> JsonObject:
        description = {"provider": self.provider, "model": self.model}
        if self.endpoint:
            description["endpoint"] = self.endpoint
        # Scrubbed, because an extra field may hold the key.
        scrubbed: JsonObject = json.loads(
            self.client.scrub(json.dumps(description | self._request_options))
        )
        return scrubbed

    async def prepare(self, environments: EnvironmentTools = NO_ENVIRONMENTS) -> None:
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
        """The options as fields of a request; extra fields override the others."""
        fields = dict(self._request_options)
        extra = fields.pop("extra", {})
        return {**fields, **extra}

    def _with_cost(self, usage: Usage) -> Usage:
        cost = self._price(usage) if self._price else None
        return usage if cost is None else usage.model_copy(update={"cost": cost})

    @staticmethod
    def reply_from_refusal(error: RequestRefused) -> Reply:
        """An empty reply, for a refusal because of the context's length or a content filter."""
        too_long = isinstance(error, ContextLengthExceeded)
        finish_reason = FinishReason.LENGTH if too_long else FinishReason.REFUSED
        return Reply(Message(role="assistant"), finish_reason)


def _build_request_options(
    temperature: float | None, extra: Mapping[str, Any] | None
) -> JsonObject:
    """Validate the options; only those that were set are recorded and sent."""
    options: JsonObject = {}
    if temperature is not None:
        if not math.isfinite(temperature) or temperature < 0:
            raise ConfigError(f"`temperature` must be 0 or more, got {temperature}.")
        options["temperature"] = temperature
    if extra:
        if reserved := sorted(_RESERVED_FIELDS & set(extra)):
            raise ConfigError(f"`extra` must not hold {reserved[0]!r}: Ludus sets it.")
        try:
            options["extra"] = json.loads(json.dumps(dict(extra), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"`extra` cannot be sent as JSON: {error}.") from None
    return options


_INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


class RawToolCall(NamedTuple):
    """A call as a server sent it; any part may be missing or of the wrong type."""

    id: Any
    name: Any
    arguments: Any


def parse_tool_calls(calls: Iterable[RawToolCall], messages: Sequence[Message]) -> tuple[Call, ...]:
    """The calls, each with an id that no other call of the episode has.

    A server's ids are kept where they are unique. New ones are made from the position in the
    episode, so that they are reproducible.
    """
    used_ids = {call.id for message in messages for call in message.tool_calls or ()}
    parsed: list[Call] = []
    for number, (call_id, name, arguments) in enumerate(calls):
        if not isinstance(call_id, str) or not call_id or call_id in used_ids:
            call_id = f"call_{len(messages)}_{number}"
            while call_id in used_ids:
                call_id += "_"
        used_ids.add(call_id)
        if not isinstance(arguments, str):
            arguments = "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        parsed.append(
            Call(id=call_id, function=Function(name=str(name or ""), arguments=arguments))
        )
    return tuple(parsed)


def sanitize_name(name: str) -> str:
    """A name or id that APIs accept; models make up some that they would refuse."""
    return _INVALID_NAME_CHARS.sub("_", name)[:64] or "_"
