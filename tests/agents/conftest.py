"""Tests see no API keys, price files, proxies or `.env` files of the machine."""

from pathlib import Path

import pytest

_VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "API_KEY", "OPENAI_BASE_URL")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*_VARIABLES, *_PROXIES, *map(str.upper, _PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
