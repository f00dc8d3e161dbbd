"""What agents behind a provider's HTTP API share: options, prices, client, and tool calls."""

from __future__ import annotations

import json
import math
import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ludus.agents.agent import (
    NO_ENVIRONMENTS,
    Agent,
    EnvironmentTools,
    EpisodeContext,
    FinishReason,
    Player,
    Reply,
)
from ludus.agents.api_keys import ApiKey, find_api_key
from ludus.agents.provider import Backoff, ProviderClient, base_url
from ludus.agents.provider_errors import ContentFiltered, ContextLengthExceeded
from ludus.data.episode import Usage
from ludus.data.json_files import read_text
from ludus.data.messages import Call, Function, Message
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.errors import ConfigError

PriceFn = Callable[[Usage], float | None]


class Rate(BaseModel):
    """An entry of the price file: US dollars per million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
    """For prompt tokens from the provider's cache; default: `input`."""

    def cost(self, usage: Usage) -> float:
        cached_rate = self.input if self.cached_input is None else self.cached_input
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        uncached = usage.prompt_tokens - cached
        prompt = uncached * self.input + cached * cached_rate
        return (prompt + usage.completion_tokens * self.output) / 1_000_000


_PRICE_FILE = TypeAdapter(dict[str, Rate])


def read_prices(path: Path) -> dict[str, Rate]:
    """Read a price file: the rates of models by name."""
    try:
        return _PRICE_FILE.validate_json(read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file in UTF-8"
        raise ConfigError(f"The price file {path} cannot be read: {reason}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = " -> ".join(str(step) for step in first["loc"]) or "the file itself"
        raise ConfigError(
            f"The price file {path} is invalid at {where}: {first['msg']}. An entry looks like "
            '{"MODEL": {"input": 0.15, "output": 0.6}}, in dollars per million tokens.'
        ) from None


def listed_price(provider: str, model: str) -> PriceFn | None:
    """Return a function from usage to cost at an API's list price; None for an unknown model."""
    # Imported here, because it is slow and many runs do not need it.
    from genai_prices import Usage as PricedUsage
    from genai_prices import calc_price

    def price(usage: Usage) -> float:
        tokens = PricedUsage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=min(usage.cached_tokens, usage.prompt_tokens),
        )
        return float(calc_price(tokens, model_ref=model, provider_id=provider).total_price)

    # genai-prices warns about uncertain entries in its price list.
    with warnings.catch_warnings(action="ignore"):
        try:
            price(Usage())
        except (LookupError, ValueError):
            return None
    return price


BlockHistory = dict[int, tuple[Message, list[JsonObject]]]
"""The content blocks of the model's replies in one episode, by message index."""
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
        prices: rates by model; default, except with an endpoint: the public list.
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
        extra: Mapping[str, object] | None = None,
        concurrency: int = 64,
        call_timeout: float = 300.0,
        max_retries: int = 8,
        prices: Mapping[str, Rate] | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.model = model
        self.endpoint = base_url(endpoint) if endpoint is not None else None
        self.provider = f"{self.vendor}-compatible" if self.endpoint else self.vendor
        self._request_options: JsonObject = {}
        """Those that were set, which are recorded and sent."""
        if temperature is not None:
            if not math.isfinite(temperature) or temperature < 0:
                raise ConfigError(f"`temperature` must be 0 or more, got {temperature}.")
            self._request_options["temperature"] = temperature
        if extra:
            if reserved := sorted(_RESERVED_FIELDS & set(extra)):
                raise ConfigError(f"`extra` must not hold {reserved[0]!r}: Ludus sets it.")
            try:
                fields = json.loads(json.dumps(dict(extra), allow_nan=False))
            except (TypeError, ValueError) as error:
                raise ConfigError(f"`extra` cannot be sent as JSON: {error}.") from None
            self._request_options["extra"] = fields
        if isinstance(key, str):
            key = ApiKey(key)
        elif key is None:
            key = find_api_key(self.vendor, for_endpoint=self.endpoint is not None)
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
        self._price: PriceFn | None = None
        if prices and model in prices:
            self._price = prices[model].cost
        elif self.endpoint is None:
            self._price = listed_price(self.vendor, model)

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

    async def begin(self, context: EpisodeContext) -> Player:
        return _APIPlayer(self, context.tools)

    def build_tool(self, tool: ToolSpec) -> JsonObject:
        """A tool in the format of the API."""
        return tool.to_openai()

    @abstractmethod
    async def request_reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        max_tokens: int | None,
        history: BlockHistory,
    ) -> Reply:
        """Request the reply to these messages, and add it to the history if the API needs that."""


class _APIPlayer(Player):
    def __init__(self, agent: APIAgent, tools: Sequence[ToolSpec]) -> None:
        self._agent = agent
        self._tools = [agent.build_tool(tool) for tool in tools]
        self._history: BlockHistory = {}

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        """Return the next message. A full context and a content filter are empty replies."""
        try:
            return await self._agent.request_reply(messages, self._tools, max_tokens, self._history)
        except ContextLengthExceeded:
            return Reply(Message(role="assistant"), FinishReason.LENGTH)
        except ContentFiltered:
            return Reply(Message(role="assistant"), FinishReason.REFUSED)


_INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


class RawToolCall(NamedTuple):
    """A call as a server sent it; any part may be missing or of the wrong type."""

    id: object
    name: object
    arguments: object


def parse_api_calls(calls: Iterable[RawToolCall], messages: Sequence[Message]) -> tuple[Call, ...]:
    """Parse the calls of an API agent, each with an id that is unique in the episode.

    A server's ids are kept if they are unique. New ones are made from the position in the
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
