"""Prices of models, from the user's file and the public list."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.api_agent import Rate, listed_price, read_prices
from ludus.agents.openai import OpenAIAgent
from ludus.data.episode import Usage
from ludus.errors import ConfigError

USAGE = Usage(prompt_tokens=1_000_000, completion_tokens=100_000, cached_tokens=400_000)


def cost(provider: str, model: str, usage: Usage = USAGE) -> float | None:
    price = listed_price(provider, model)
    assert price is not None
    return price(usage)


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_public_list_knows_well_known_models() -> None:
    # $0.15 and $0.075 (cached) for a million tokens in, $0.60 out.
    assert cost("openai", "gpt-4o-mini") == pytest.approx(0.6 * 0.15 + 0.03 + 0.06)
    # $0.80 and $0.08 in, $4 out.
    assert cost("anthropic", "claude-3-5-haiku-20241022") == pytest.approx(
        0.6 * 0.80 + 0.4 * 0.08 + 0.4
    )


def test_no_usage_costs_nothing() -> None:
    assert cost("openai", "gpt-4o-mini", Usage()) == 0.0


def test_cached_tokens_are_capped_at_the_prompt() -> None:
    too_many = Usage(prompt_tokens=10, cached_tokens=20)
    all_cached = Usage(prompt_tokens=10, cached_tokens=10)
    assert cost("openai", "gpt-4o-mini", too_many) == cost("openai", "gpt-4o-mini", all_cached)
    rate = Rate(input=2, output=0, cached_input=1)
    assert rate.cost(too_many) == rate.cost(all_cached)


def test_an_unknown_model_has_no_price() -> None:
    assert listed_price("openai", "nobody-knows-this-1") is None


def test_the_users_rate_for_cached_tokens_is_used() -> None:
    assert Rate(input=1.0, output=10.0).cost(USAGE) == pytest.approx(1.0 + 1.0)
    rate = Rate(input=1.0, output=10.0, cached_input=0.5)
    assert rate.cost(USAGE) == pytest.approx(0.6 + 0.2 + 1.0)


@pytest.mark.parametrize("endpoint", [None, "http://localhost:1/v1"])
def test_for_an_endpoint_only_the_users_rates_count(endpoint: str | None) -> None:
    for model, rates, has_price in (
        ("gpt-4o-mini", {}, endpoint is None),
        ("mine", {}, False),
        ("mine", {"mine": Rate(input=1.0, output=0.0)}, True),
    ):
        agent = OpenAIAgent(model, endpoint=endpoint, key="secret", prices=rates)
        assert agent.has_price == has_price


def test_rates_are_read_from_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "prices.json", {"m": {"input": 3, "output": 1}})
    assert read_prices(path) == {"m": Rate(input=3, output=1)}


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ({"good": {"input": 1, "output": 1}, "bad": {"input": 1}}, "bad -> output"),
        ({"bad": {"input": -1, "output": 1}}, "bad -> input"),
        ({"bad": {"input": 1, "output": 1, "inputt": 1}}, "bad -> inputt"),
        ({"bad": 3}, "bad"),
        ("[]", "the file itself"),
        ("{", "the file itself"),
    ],
)
def test_an_invalid_file_is_named_with_its_entry(tmp_path: Path, content: Any, where: str) -> None:
    path = write(tmp_path / "prices.json", content)
    with pytest.raises(ConfigError) as caught:
        read_prices(path)
    message = str(caught.value)
    assert str(path) in message and f"at {where}: " in message and "\n" not in message


def test_the_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        read_prices(tmp_path / "none.json")
