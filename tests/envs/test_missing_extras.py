"""Packages of environments whose libraries are not installed."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from ludus.errors import MissingExtra


@pytest.mark.parametrize(
    ("package", "environment", "client", "extra"),
    [
        ("browsergym", "BrowserGym", "BrowserGymEnv", "browsergym"),
        ("mcp", "Mcp", None, "mcp"),
        ("openspiel", "OpenSpiel", "OpenSpielEnv", "openspiel"),
        ("reasoning_gym", "ReasoningGym", "ReasoningGymEnv", "reasoning"),
        ("textarena", "TextArena", "TextArenaEnv", "textarena"),
    ],
)
def test_without_the_extra_the_environment_says_what_to_install(
    package: str, environment: str, client: str | None, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"ludus.envs.{package}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=rf"'ludus-rl\[{extra}\]'"):
        getattr(module, environment)
    if client is not None:  # A client does not need the library.
        assert getattr(module, client).__name__ == client


def test_other_names_are_not_attributes() -> None:
    module = importlib.import_module("ludus.envs.openspiel")
    with pytest.raises(AttributeError, match="'Chess'"):
        _ = module.Chess
