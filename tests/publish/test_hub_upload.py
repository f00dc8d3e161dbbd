"""Upload to a fake Hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

from ludus.errors import ConfigError, MissingExtra, PublishFailed
from ludus.publish.hub_upload import check_login, check_upload_target, open_repo, push_folder
from publish.fake_hub import TOKEN, fake_hub
from publish.sample_episodes import (
    broken_episode,
    episode,
    long_episode,
    run_folder,
    wordle_episode,
)


@pytest.fixture(autouse=True)
def _logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One token, and nothing of what the machine's user has."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_OIDC_RESOURCE", raising=False)
    for name, value in {
        "HF_TOKEN_PATH": str(tmp_path / "token"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)


def push(folder: Path, url: str, **options: Any) -> str:
    return push_folder(
        folder, "ada/sums", endpoint=url, retry_command="ludus push ada/sums", **options
    )


def test_pushed_files_can_be_loaded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path / "run", episode(1), wordle_episode(2), broken_episode(3))
    (folder / "notes.txt").write_text("not for others")
    before = sorted(folder.iterdir())
    with fake_hub() as hub:
        url = push(folder, hub.url, message="First try", command="ludus collect x")
        assert url == f"{hub.url}/datasets/ada/sums"
    assert sorted(hub.files) == ["README.md", "episodes.jsonl", "run.json", "summary.json"]
    assert hub.messages == ["First try"] and hub.repos == {"ada/sums": False}
    assert 'load_dataset("ada/sums"' in hub.files["README.md"].decode()
    assert sorted(folder.iterdir()) == before
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    pulled = hub.write_to(tmp_path / "pulled")
    rows = load_dataset(str(pulled), split="train", cache_dir=str(tmp_path / "cache"))
    assert [row["reward"] for row in rows] == [1.0, 0.5, None]
    call = rows[0]["messages"][2]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"answer": "41"}
    assert len(rows.filter(lambda row: row["reward"] == 1.0)) == 1


def test_large_files_go_to_lfs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path, long_episode(1))
    with fake_hub(large=100_000) as hub:
        push(folder, hub.url)
    assert hub.files["episodes.jsonl"] == (folder / "episodes.jsonl").read_bytes()
    assert len(hub.objects) == 1
    assert capfd.readouterr() == ("", "")


def test_second_push_updates_the_repo(tmp_path: Path) -> None:
    with fake_hub() as hub:
        push(run_folder(tmp_path, episode(1)), hub.url)
        push(run_folder(tmp_path, episode(1), episode(2)), hub.url)
    assert len(hub.messages) == 2
    assert hub.files["episodes.jsonl"].count(b"\n") == 2


def test_public_repo_is_rejected_if_private(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, episode(1))
    with fake_hub() as hub:
        push(folder, hub.url, private=True)
        assert hub.repos == {"ada/sums": True}
    with (
        fake_hub(repos={"ada/sums": False}) as hub,
        pytest.raises(PublishFailed, match="exists and is public"),
    ):
        push(folder, hub.url, private=True)
    assert hub.files == {}


@pytest.mark.parametrize(
    ("where", "how", "words"),
    [
        ("create", 401, r"token \(HTTP 401\)"),
        ("create", 403, r"\(HTTP 403\)"),
        ("create", 500, "HTTP 500"),
        ("create", "drop", "reached"),
        ("create", "hang", "in time"),
        ("validate", 500, "HTTP 500"),
        ("preupload", 403, r"\(HTTP 403\)"),
        ("commit", 503, "HTTP 503"),
        ("commit", "hang", "in time"),
    ],
)
def test_failed_upload_names_the_retry_command(
    where: str, how: Any, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path, episode(1))
    with fake_hub(fail={where: how}) as hub, pytest.raises(PublishFailed, match=words) as caught:
        push(folder, hub.url, timeout=0.5 if how == "hang" else 60.0)
    said = str(caught.value)
    assert str(folder) in said and "ludus push ada/sums" in said
    assert "\n" not in said and TOKEN not in said
    assert capfd.readouterr() == ("", "")


def test_storage_error_names_the_file(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, long_episode(1))
    with (
        fake_hub(large=100_000, fail={"/storage/": 403}) as hub,
        pytest.raises(PublishFailed, match=r"'episodes\.jsonl'.*HTTP 403"),
    ):
        push(folder, hub.url)


def test_unreachable_hub_and_empty_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(PublishFailed, match="cannot be reached"):
        push(tmp_path, "http://127.0.0.1:1")
    with fake_hub() as hub, pytest.raises(PublishFailed, match=r"episodes\.jsonl"):
        push(tmp_path, hub.url)


@pytest.mark.parametrize("name", ["ada/sums", "ada-b/sums_2.x"])
def test_valid_repo_id_is_accepted(name: str) -> None:
    check_upload_target(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "sums", "ada/", "a/b/c", "ada/my sums", "-a/b", "a/b..c", "a/b.git", "ada/sums\n"),
        "https://huggingface.co/datasets/ada/sums",
        "a/" + "b" * 99,
    ],
)
def test_invalid_repo_id_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match="USER/NAME"):
        check_upload_target(name)


def test_check_login_requires_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_login()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        check_login()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigError, match="hf auth login"):
        check_login()
    (tmp_path / "token").write_text(TOKEN)
    check_login()


def test_open_repo_checks_write_permission() -> None:
    with fake_hub() as hub:
        assert open_repo("ada/sums", endpoint=hub.url) == f"{hub.url}/datasets/ada/sums"
        assert open_repo("ada/sums", endpoint=hub.url) == f"{hub.url}/datasets/ada/sums"
    assert hub.repos == {"ada/sums": False}
    with fake_hub(fail={"create": 403}) as hub, pytest.raises(ConfigError, match="may not write"):
        open_repo("ada/sums", endpoint=hub.url)


def test_settings_of_the_hub_client_are_restored(tmp_path: Path) -> None:
    from huggingface_hub import get_session
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        logging,
    )

    def settings() -> tuple[Any, ...]:
        return get_session().timeout, logging.get_verbosity(), are_progress_bars_disabled()

    before = settings()
    with fake_hub() as hub:
        push(run_folder(tmp_path, episode(1)), hub.url)
    assert settings() == before


def test_hf_endpoint_is_respected(tmp_path: Path) -> None:
    """A mirror, or a Hub of one's own."""
    folder = run_folder(tmp_path / "run", episode(1))
    script = (
        "import sys, pathlib; from ludus.publish.hub_upload import push_folder; "
        "print(push_folder(pathlib.Path(sys.argv[1]), 'ada/sums'))"
    )
    with fake_hub() as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder)],
            env={**os.environ, **env, "HF_HUB_OFFLINE": "0"},
            capture_output=True,
            text=True,
        )
        assert (done.stdout, done.stderr) == (f"{hub.url}/datasets/ada/sums\n", "")
    assert "episodes.jsonl" in hub.files


def test_missing_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for ask in (check_login, lambda: open_repo("a/b"), lambda: push_folder(Path(), "a/b")):
        with pytest.raises(MissingExtra, match=r"'ludus-rl\[hub\]'"):
            ask()
