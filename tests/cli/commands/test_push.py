"""`ludus push dataset` and `ludus push model`, to a Hub on loopback."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from ludus_process import run_ludus, start_ludus
from publish.fake_hub import TOKEN, FakeHub, fake_hub
from world import wait_until

from cli.collect_cli import error_line
from cli.curate_cli import curate, make_episode, stdout_of, write_run
from ludus.errors import PublishFailed
from ludus.publish.hub_upload import MODEL, push_folder

EPISODES = tuple(make_episode(f"n{number}", task=f"word{number}", turns=1) for number in range(4))


def logged_in(hub: FakeHub, home: Path) -> dict[str, str]:
    return {
        **{"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(home / "home")},
        **{"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"},
    }


def collect(folder: Path) -> Path:
    stdout_of(run_ludus("collect", "catch", "-n", "4", "-o", str(folder), "--json"))
    return folder


def write_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    (folder / "config.json").write_text("{}")
    (folder / "episodes.jsonl").write_text("{}\n")
    card = "---\npipeline_tag: text-generation\n---\n# Mine\n"
    (folder / "README.md").write_text(card)
    return folder


def test_a_run_is_uploaded_as_a_private_data_set(tmp_path: Path) -> None:
    run = collect(tmp_path / "run")
    with fake_hub() as hub:
        command = ("push", "dataset", str(run), "ada/words", "--private")
        output = stdout_of(run_ludus(*command, env=logged_in(hub, tmp_path)))
    assert output == f"Data set: {hub.url}/datasets/ada/words\n"
    assert hub.repos == {"ada/words": True}
    assert hub.files["episodes.jsonl"] == (run / "episodes.jsonl").read_bytes()
    assert {"README.md", "results.jsonl", "run.json"} < hub.files.keys()


def test_a_curated_data_set_is_uploaded_with_its_own_card(tmp_path: Path) -> None:
    run, data = write_run(tmp_path / "run", *EPISODES), tmp_path / "data"
    stdout_of(curate(run, "-o", data))
    (data / "notes.txt").write_text("mine")
    with fake_hub() as hub:
        command = ("push", "dataset", str(data), "ada/words")
        stdout_of(run_ludus(*command, env=logged_in(hub, tmp_path)))
    assert hub.files["README.md"] == (data / "README.md").read_bytes()
    assert {"train.jsonl", "curation.json"} < hub.files.keys() and "notes.txt" not in hub.files


def test_a_model_is_uploaded_without_its_episodes(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    with fake_hub() as hub:
        command = ("push", "model", str(model), "ada/player")
        output = stdout_of(run_ludus(*command, env=logged_in(hub, tmp_path)))
    assert output == f"Model: {hub.url}/ada/player\n"
    assert hub.files.keys() == {"README.md", "config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dataset", "nowhere/run", "ada/x"), "nowhere/run does not exist"),
        (("dataset", ".", "ada/x"), "curation.json"),
        (("model", ".", "ada/x"), "*.safetensors"),
        (("model", "nowhere/model", "ada/x"), "nowhere/model does not exist"),
        (("model", ".", "x"), "'x'"),
    ],
)
def test_a_source_that_cannot_be_uploaded_is_named(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    env = {"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
    assert words in error_line(run_ludus("push", *arguments, cwd=tmp_path, env=env))


def test_an_interrupted_upload_sends_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name, value in {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    names = [f"model-{number}.safetensors" for number in range(3)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes([number]) * 2000)
    card = "---\npipeline_tag: text-generation\n---\n"
    with fake_hub(large=1000, fail={"commit": 500}) as hub:
        with pytest.raises(PublishFailed):
            push_folder(tmp_path, "ada/player", MODEL, files=names, card=card, endpoint=hub.url)
        assert hub.files == {}
        hub.fail.clear()
        push_folder(tmp_path, "ada/player", MODEL, files=names, card=card, endpoint=hub.url)
    sent = [path for path in hub.requests if path.startswith("/storage/")]
    assert len(sent) == len({*sent}) == 3
    assert {name: hub.files[name] for name in names} == {
        name: (tmp_path / name).read_bytes() for name in names
    }
    assert len(hub.messages) == 1


def test_ctrl_c_ends_an_upload_with_one_line(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    command = ("push", "model", model, "ada/player")
    with fake_hub(fail={"preupload": "hang"}) as hub:
        with start_ludus(*command, env=logged_in(hub, tmp_path)) as process:
            wait_until(lambda: any("preupload" in path for path in hub.requests), seconds=60)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 130 and hub.files == {}
    assert "the same command" in errors and "Traceback" not in errors


def test_the_retry_command_of_a_failed_upload_is_the_command(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    command = ("push", "model", str(model), "ada/player")
    with fake_hub(fail={"commit": 500}) as hub:
        line = error_line(run_ludus(*command, env=logged_in(hub, tmp_path)))
    assert "HTTP 500" in line and line.strip().endswith(" ".join(command)) and TOKEN not in line
    assert json.loads((model / "config.json").read_text()) == {}
