"""Prices of models, from the user's file and the public list."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.api_agent import PriceTable, Rate
from ludus.data.episode import Usage
from ludus.errors import ConfigError

USAGE = Usage(prompt_tokens=1_000_000, completion_tokens=100_000, cached_tokens=400_000)


def cost(prices: PriceTable, provider: str, model: str, usage: Usage = USAGE) -> float | None:
    price = prices.price_for(provider, model)
    assert price is not None
    return price(usage)


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_public_list_knows_well_known_models() -> None:
    # $0.15 and $0.075 (cached) for a million tokens in, $0.60 out.
    assert cost(PriceTable(), "openai", "gpt-4o-mini") == pytest.approx(0.6 * 0.15 + 0.03 + 0.06)
    # $0.80 and $0.08 in, $4 out.
    assert cost(PriceTable(), "anthropic", "claude-3-5-haiku-20241022") == pytest.approx(
        0.6 * 0.80 + 0.4 * 0.08 + 0.4
    )


def test_no_usage_costs_nothing() -> None:
    assert cost(PriceTable(), "openai", "gpt-4o-mini", Usage()) == 0.0


def test_cached_tokens_are_capped_at_the_prompt() -> None:
    too_many = Usage(prompt_tokens=10, cached_tokens=20)
    all_cached = Usage(prompt_tokens=10, cached_tokens=10)
    for prices in (
        PriceTable(),
        PriceTable({"gpt-4o-mini": Rate(input=2, output=0, cached_input=1)}),
    ):
        assert cost(prices, "openai", "gpt-4o-mini", too_many) == (
            cost(prices, "openai", "gpt-4o-mini", all_cached)
        )


def test_an_unknown_model_has_no_price() -> None:
    assert PriceTable().price_for("openai", "nobody-knows-this-1") is None


def test_the_users_rate_overrides_the_list() -> None:
    prices = PriceTable({"gpt-4o-mini": Rate(input=1.0, output=10.0)})
    assert cost(prices, "openai", "gpt-4o-mini") == pytest.approx(1.0 + 1.0)


def test_the_users_rate_for_cached_tokens_is_used() -> None:
    prices = PriceTable({"mine": Rate(input=1.0, output=10.0, cached_input=0.5)})
    assert cost(prices, "openai", "mine") == pytest.approx(0.6 + 0.2 + 1.0)


def test_for_an_endpoint_only_the_users_file_counts() -> None:
    prices = PriceTable({"mine": Rate(input=1.0, output=0.0)})
    assert prices.price_for("openai", "gpt-4o-mini", endpoint_given=True) is None
    price = prices.price_for("openai", "mine", endpoint_given=True)
    assert price is not None and price(USAGE) == pytest.approx(1.0)


def test_a_path_overrides_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PriceTable.load().rates == {}
    variable = write(tmp_path / "variable.json", {"m": {"input": 2, "output": 1}})
    monkeypatch.setenv("LUDUS_PRICES", str(variable))
    assert PriceTable.load().rates["m"].input == 2
    given = write(tmp_path / "given.json", {"m": {"input": 3, "output": 1}})
    assert PriceTable.load(given).rates["m"].input == 3


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
        PriceTable.load(path)
    message = str(caught.value)
    assert str(path) in message and f"at {where}: " in message and "\n" not in message


def test_a_given_file_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        PriceTable.load(tmp_path / "none.json")
    monkeypatch.setenv("LUDUS_PRICES", str(tmp_path / "gone.json"))
    with pytest.raises(ConfigError, match=r"gone\.json"):
        PriceTable.load()
