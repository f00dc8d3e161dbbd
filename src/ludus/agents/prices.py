"""The cost of a reply in US dollars.

Prices come from the user's file, then from the list in the `genai-prices` package; nothing is
fetched. For a model behind an endpoint only the file counts.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ludus.data.episode import Usage
from ludus.data.json_files import read_text
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


class PriceTable:
    """Prices of models: the user's rates take precedence over the public list."""

    def __init__(self, rates: Mapping[str, Rate] | None = None) -> None:
        self.rates = dict(rates or {})

    @classmethod
    def load(cls, path: str | Path | None = None) -> PriceTable:
        """Load the given file, or the one that LUDUS_PRICES names."""
        file = path or os.environ.get("LUDUS_PRICES")
        if not file:
            return cls()
        path = Path(file).expanduser()
        try:
            return cls(_PRICE_FILE.validate_json(read_text(path)))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not a text file in UTF-8"
            raise ConfigError(f"The price file {path} cannot be read: {reason}.") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = " -> ".join(str(step) for step in first["loc"]) or "the file itself"
            raise ConfigError(
                f"The price file {path} is invalid at {where}: {first['msg']}. "
                'An entry looks like {"MODEL": {"input": 0.15, "output": 0.6}}, in dollars per '
                "million tokens."
            ) from None

    def price_for(
        self, provider: str, model: str, *, endpoint_given: bool = False
    ) -> PriceFn | None:
        """A function from usage to cost, or None if the price is unknown."""
        if model in self.rates:
            return self.rates[model].cost
        return None if endpoint_given else _listed_price(provider, model)


def _listed_price(provider: str, model: str) -> PriceFn | None:
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

    # genai-prices warns about uncertain entries of its own list.
    with warnings.catch_warnings(action="ignore"):
        try:
            price(Usage())
        except (LookupError, ValueError):
            return None
    return price
