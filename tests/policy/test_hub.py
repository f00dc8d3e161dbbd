"""Models on the Hub, asked of a small server that answers as the Hub does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from students import CHATML

from ludus.errors import ConfigError
from ludus.policy.load import load_model
from ludus.policy.model_ref import ModelKind, resolve_model
from ludus.policy.tokenizer import load_tokenizer
from policy.models import adapted, saved

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Repositories that are folders; those whose name says so are gated."""

    def __init__(self, shelf: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.shelf = shelf


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, _ = self.path.partition("?")
        parts = path.strip("/").split("/")
        if parts[4:5] == ["tree"] and len(parts) == 6:
            self._tree("/".join(parts[2:4]))
        elif parts[:2] == ["api", "models"] and len(parts) in (3, 4, 6):
            self._about("/".join(parts[2:4]))
        elif "resolve" in parts:
            self._file("/".join(parts[:2]), "/".join(parts[4:]))
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def _about(self, repo: str) -> None:
        if not (self.server.shelf / repo).is_dir():
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        files = [{"rfilename": file.name} for file in (self.server.shelf / repo).iterdir()]
        told = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": files}
        self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _tree(self, repo: str) -> None:
        files = [
            {"type": "file", "path": file.name, "oid": COMMIT, "size": file.stat().st_size}
            for file in (self.server.shelf / repo).iterdir()
        ]
        self._send(200, json.dumps(files).encode(), {"Content-Type": "application/json"})

    def _file(self, repo: str, name: str) -> None:
        file = self.server.shelf / repo / name
        if "gated" in repo:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        if not file.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        self._send(200, file.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{file.name}"'})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not among the tests' output."""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    hub = Hub(tmp_path / "shelf")
    thread = threading.Thread(target=hub.serve_forever, args=(0.01,))
    thread.start()
    url, known = f"http://127.0.0.1:{hub.server_port}", "huggingface_hub.constants"
    monkeypatch.setattr(f"{known}.ENDPOINT", url)
    monkeypatch.setattr(
        f"{known}.HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(f"{known}.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(f"{known}.HF_HUB_CACHE", str(tmp_path / "cache"))
    # Which remembers the Hub that it first spoke to.
    monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
    yield hub.shelf
    hub.shutdown()
    thread.join()
    hub.server_close()


def test_a_model_on_the_hub_is_loaded(shelf: Path) -> None:
    saved(shelf / "org" / "tiny")
    assert resolve_model("org/tiny").kind is ModelKind.HUB
    assert load_tokenizer("org/tiny").chat_template == CHATML
    assert load_model("org/tiny").name_or_path == "org/tiny"


def test_what_was_loaded_once_can_be_used_without_the_hub(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(shelf / "org" / "tiny")
    there = load_model("org/tiny")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    again = load_model("org/tiny")
    assert all(map(torch.equal, there.parameters(), again.parameters()))


def test_an_adapter_on_the_hub_goes_over_its_base_there(shelf: Path, tmp_path: Path) -> None:
    saved(shelf / "org" / "tiny")
    tuned = adapted(shelf / "org" / "tuned", shelf / "org" / "tiny")
    expected = load_model(str(tuned), dtype="float32")
    config = json.loads((tuned / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "org/tiny"
    (tuned / "adapter_config.json").write_text(json.dumps(config))
    found = resolve_model("org/tuned")
    assert found.kind is ModelKind.ADAPTER and Path(found.path).is_relative_to(tmp_path / "cache")
    loaded = load_model("org/tuned", dtype="float32")
    assert all(map(torch.equal, expected.parameters(), loaded.parameters()))
    assert load_tokenizer("org/tuned").chat_template == CHATML


def test_what_the_hub_does_not_know_is_one_line(shelf: Path) -> None:
    with pytest.raises(ConfigError, match="There is no folder org/nothing here, and no model"):
        resolve_model("org/nothing")


@pytest.mark.parametrize("name", ["smolm2", "SmolLM-2"])
def test_a_misspelt_smollm2_is_named_without_asking_the_hub(name: str) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'smollm2'"):
        resolve_model(name)


@pytest.mark.parametrize("load", [load_tokenizer, load_model])
@pytest.mark.parametrize("name", ["org/gated", "org/gated-adapter"])
def test_a_gated_model_is_one_line(shelf: Path, load: Callable[[str], Any], name: str) -> None:
    saved(shelf / "org" / "gated")
    (shelf / "org" / "gated-adapter").mkdir()
    (shelf / "org" / "gated-adapter" / "adapter_config.json").touch()
    with pytest.raises(ConfigError, match=f"^{name} is gated on the Hub\\. Ask for access"):
        load(name)
