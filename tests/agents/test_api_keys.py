"""Finding API keys, and keeping them out of texts."""

import copy
import pickle
from pathlib import Path

import pytest

from agents.stub_agents import SECRET
from ludus.agents.api_keys import ApiKey, find_api_key
from ludus.errors import ConfigError


def find(provider: str, *, for_endpoint: bool = False) -> tuple[str, str]:
    key = find_api_key(provider, for_endpoint=for_endpoint)
    assert key is not None
    return key.source, key.reveal()


def test_printing_a_key_does_not_reveal_it() -> None:
    key = ApiKey(SECRET, "OPENAI_API_KEY")
    assert repr(key) == str(key) == f"{key}" == "ApiKey(OPENAI_API_KEY)"
    assert key.reveal() == SECRET


@pytest.mark.parametrize("write", [pickle.dumps, copy.deepcopy])
def test_a_key_cannot_be_pickled(write: object) -> None:
    with pytest.raises(TypeError, match="pickled"):
        write(ApiKey(SECRET))  # type: ignore[operator]


def test_a_key_is_scrubbed_in_every_encoding() -> None:
    key = ApiKey('a"b/c+d')
    assert key.scrub('raw a"b/c+d, json a\\"b/c+d, url a%22b%2Fc%2Bd') == (
        "raw ***, json ***, url ***"
    )


def test_a_placeholder_is_not_scrubbed() -> None:
    assert ApiKey("x").scrub("next text") == "next text"


def test_the_providers_variable_takes_precedence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_KEY", "shared")
    assert find("openai") == find("anthropic") == ("API_KEY", "shared")
    monkeypatch.setenv("OPENAI_API_KEY", "own")
    assert find("openai") == ("OPENAI_API_KEY", "own")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "other")
    assert find("anthropic") == ("ANTHROPIC_API_KEY", "other")


def test_for_an_endpoint_the_shared_variable_takes_precedence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_api_key("openai", for_endpoint=True) is None
    monkeypatch.setenv("OPENAI_API_KEY", "own")
    assert find("openai", for_endpoint=True) == ("OPENAI_API_KEY", "own")
    monkeypatch.setenv("API_KEY", "shared")
    assert find("openai", for_endpoint=True) == ("API_KEY", "shared")


def test_a_missing_key_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(ConfigError) as caught:
        find_api_key("anthropic")
    assert "ANTHROPIC_API_KEY" in str(caught.value) and ".env" in str(caught.value)


def test_a_dotenv_file_above_is_read_after_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text('OPENAI_API_KEY="from${OTHER}file"\nOTHER=1\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert find("openai") == ("OPENAI_API_KEY", "from${OTHER}file")
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert find("openai") == ("OPENAI_API_KEY", "from-environment")


def test_a_dotenv_file_does_not_change_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=a-key\n")
    assert find("openai") == ("OPENAI_API_KEY", "a-key")
    (tmp_path / ".env").unlink()
    with pytest.raises(ConfigError):
        find_api_key("openai")


def test_an_unreadable_dotenv_file_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"OPENAI_API_KEY=\xff\xfe\n")
    with pytest.raises(ConfigError, match=r"\.env"):
        find_api_key("openai")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " \n")
    monkeypatch.setenv("API_KEY", "shared")
    assert find("openai") == ("API_KEY", "shared")


def test_blanks_around_a_key_are_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"  {SECRET}\r\n")
    assert find("openai") == ("OPENAI_API_KEY", SECRET)


@pytest.mark.parametrize("secret", ["half secret", "half\nsecret", "half\tsecret", "sécret", ""])
def test_an_invalid_key_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ConfigError, match="MY_KEY") as caught:
        ApiKey(secret, "MY_KEY")
    assert not secret or secret not in str(caught.value)
    assert "half" not in str(caught.value) and "cret" not in str(caught.value)
