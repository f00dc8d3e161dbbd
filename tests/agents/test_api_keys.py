"""Where keys come from, and where they never go."""

import copy
import pickle
from pathlib import Path

import pytest

from agents.asking import SECRET
from ludus.agents.api_keys import ApiKey, find_key
from ludus.errors import ConfigError


def found(
    provider: str, variable: str | None = None, *, for_endpoint: bool = False
) -> tuple[str, str]:
    key = find_key(provider, variable, for_endpoint=for_endpoint)
    assert key is not None
    return key.source, key.reveal()


def test_a_key_does_not_show_itself() -> None:
    key = ApiKey(SECRET, "OPENAI_API_KEY")
    assert repr(key) == str(key) == f"{key}" == "Key(OPENAI_API_KEY)"
    assert key.reveal() == SECRET


@pytest.mark.parametrize("write", [pickle.dumps, copy.deepcopy])
def test_a_key_is_not_pickled(write: object) -> None:
    with pytest.raises(TypeError, match="not pickled"):
        write(ApiKey(SECRET))  # type: ignore[operator]


def test_a_text_is_freed_of_a_key_in_every_form_that_a_server_may_echo() -> None:
    key = ApiKey('a"b/c+d')
    assert key.scrub('raw a"b/c+d, json a\\"b/c+d, url a%22b%2Fc%2Bd') == (
        "raw ***, json ***, url ***"
    )


def test_a_placeholder_is_not_cut_out_of_words() -> None:
    assert ApiKey("x").scrub("next text") == "next text"


def test_the_providers_own_variable_comes_before_the_shared_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_KEY", "shared")
    assert found("openai") == found("anthropic") == ("API_KEY", "shared")
    monkeypatch.setenv("OPENAI_API_KEY", "own")
    assert found("openai") == ("OPENAI_API_KEY", "own")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "other")
    assert found("anthropic") == ("ANTHROPIC_API_KEY", "other")


def test_an_endpoint_gets_the_shared_key_before_the_providers_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_key("openai", for_endpoint=True) is None
    monkeypatch.setenv("OPENAI_API_KEY", "own")
    assert found("openai", for_endpoint=True) == ("OPENAI_API_KEY", "own")
    monkeypatch.setenv("API_KEY", "shared")
    assert found("openai", for_endpoint=True) == ("API_KEY", "shared")


def test_a_variable_asked_for_by_name_is_the_only_one_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "own")
    with pytest.raises(ConfigError, match="MY_KEY is neither"):
        find_key("openai", "MY_KEY", for_endpoint=True)
    monkeypatch.setenv("MY_KEY", "mine")
    assert found("openai", "MY_KEY") == ("MY_KEY", "mine")


def test_a_missing_key_is_one_line_that_names_the_variable_and_both_places() -> None:
    with pytest.raises(ConfigError) as caught:
        find_key("anthropic")
    line = str(caught.value)
    assert "ANTHROPIC_API_KEY" in line and "environment" in line and ".env" in line
    assert "\n" not in line


def test_a_dotenv_of_a_folder_above_is_read_and_the_environment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text('OPENAI_API_KEY="from${OTHER}file"\nOTHER=1\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert found("openai") == ("OPENAI_API_KEY", "from${OTHER}file")
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert found("openai") == ("OPENAI_API_KEY", "from-environment")


def test_a_dotenv_leaves_the_environment_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=a-key\n")
    assert found("openai") == ("OPENAI_API_KEY", "a-key")
    (tmp_path / ".env").unlink()
    with pytest.raises(ConfigError):
        find_key("openai")


def test_a_dotenv_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"OPENAI_API_KEY=\xff\xfe\n")
    with pytest.raises(ConfigError, match=r"\.env cannot be read"):
        find_key("openai")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " \n")
    monkeypatch.setenv("API_KEY", "shared")
    assert found("openai") == ("API_KEY", "shared")


def test_blanks_around_a_key_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"  {SECRET}\r\n")
    assert found("openai") == ("OPENAI_API_KEY", SECRET)


@pytest.mark.parametrize("secret", ["half secret", "half\nsecret", "half\tsecret", "sécret", ""])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ConfigError, match="MY_KEY holds no usable key") as caught:
        ApiKey(secret, "MY_KEY")
    assert not secret or secret not in str(caught.value)
    assert "half" not in str(caught.value) and "cret" not in str(caught.value)
