"""Dollars for tokens: what a reply cost.

Prices come from the user's own file, then from the list that the `genai-prices` package brings
along. Nothing is ever fetched. What a model behind somebody's own endpoint costs only the file
can say.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ludus.data.episode import Usage
from ludus.errors import ConfigError

PriceFn = Callable[[Usage], float | None]

_MILLION = 1_000_000


class Rate(BaseModel):
    """An entry of the user's file: US dollars for a million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
    """For the part of the prompt that the provider had in its cache; as `input` if not given."""

    def cost(self, usage: Usage) -> float:
        cached_rate = self.input if self.cached_input is None else self.cached_input
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        fresh = usage.prompt_tokens - cached
        spent = fresh * self.input + cached * cached_rate + usage.completion_tokens * self.output
        return spent / _MILLION


_PRICE_FILE = TypeAdapter(dict[str, Rate])


class PriceTable:
    """What models cost: the user's rates before the public list."""

    def __init__(self, rates: Mapping[str, Rate] | None = None) -> None:
        self.rates = dict(rates or {})

    @classmethod
    def load(cls, path: str | Path | None = None) -> PriceTable:
        """With the rates of this file, or of LUDUS_PRICES, or of ~/.config/ludus/prices.json.

        A file that was named must be there; the last one need not.
        """
        named = path or os.environ.get("LUDUS_PRICES")
        if named:
            return cls(_load_rates(Path(named).expanduser()))
        usual = _default_path()
        return cls(_load_rates(usual) if usual and usual.is_file() else None)

    def price_for(
        self, provider: str, model: str, *, endpoint_given: bool = False
    ) -> PriceFn | None:
        """How to price this model's replies; None where nobody says."""
        if model in self.rates:
            return self.rates[model].cost
        return None if endpoint_given else _listed_price(provider, model)


def _default_path() -> Path | None:
    try:
        return Path.home() / ".config" / "ludus" / "prices.json"
    except RuntimeError:  # nobody's account, as in some containers
        return None


def _load_rates(path: Path) -> dict[str, Rate]:
    try:
        return _PRICE_FILE.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"The price file {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = " -> ".join(str(step) for step in first["loc"]) or "the file itself"
        raise ConfigError(
            f"The price file {path} is wrong at {where}: {first['msg']}. "
            'An entry looks like {"MODEL": {"input": 0.15, "output": 0.6}}, in dollars for a '
            "million tokens."
        ) from None


def _listed_price(provider: str, model: str) -> PriceFn | None:
    # Imported here: it takes a good part of a second, and many runs do without.
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    def price(usage: Usage) -> float:
        counted = Counted(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=min(usage.cached_tokens, usage.prompt_tokens),
        )
        return float(calc_price(counted, model_ref=model, provider_id=provider).total_price)

    # The list's doubts about its own data are not for our users.
    with warnings.catch_warnings(action="ignore"):
        try:
            price(Usage())
        except (LookupError, ValueError):
            return None
    return price
