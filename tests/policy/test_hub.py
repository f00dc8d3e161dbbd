"""Models on the Hub, served by a local fake."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_tokenizers import CHATML

from ludus.errors import ConfigError
from ludus.policy.load import load_model, load_tokenizer
from ludus.policy.model_ref import ModelKind, resolve_model
from policy.models import adapted, saved

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves the folders below `repos`; names with "gated" are gated."""

    def __init__(self, repos: Path) -> None:
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.repos = repos


class FakeHubHandler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, _ = self.path.partition("?")
        parts = path.strip("/").split("/")
        if parts[4:5] == ["tree"] and len(parts) == 6:
            self._send_tree("/".join(parts[2:4]))
        elif parts[:2] == ["api", "models"] and len(parts) in (3, 4, 6):
            self._send_model_info("/".join(parts[2:4]))
        elif "resolve" in parts:
            self._send_file("/".join(parts[:2]), "/".join(parts[4:]))
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def _send_model_info(self, repo: str) -> None:
        if not (self.server.repos / repo).is_dir():
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        files = [{"rfilename": file.name} for file in (self.server.repos / repo).iterdir()]
        info = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": files}
        self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _send_tree(self, repo: str) -> None:
        files = [
            {"type": "file", "path": file.name, "oid": COMMIT, "size": file.stat().st_size}
            for file in (self.server.repos / repo).iterdir()
        ]
        self._send(200, json.dumps(files).encode(), {"Content-Type": "application/json"})

    def _send_file(self, repo: str, name: str) -> None:
        file = self.server.repos / repo / name
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
        """Keep the test output clean."""


@pytest.fixture
def repos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    hub = FakeHub(tmp_path / "repos")
    thread = threading.Thread(target=hub.serve_forever, args=(0.01,))
    thread.start()
    url, constants = f"http://127.0.0.1:{hub.server_port}", "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.ENDPOINT", url)
    monkeypatch.setattr(
        f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(tmp_path / "cache"))
    # It caches the endpoint of its first call.
    monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
    yield hub.repos
    hub.shutdown()
    thread.join()
    hub.server_close()


def test_a_model_on_the_hub_is_loaded(repos: Path) -> None:
    saved(repos / "org" / "tiny")
    assert resolve_model("org/tiny").kind is ModelKind.HUB
    assert load_tokenizer("org/tiny").chat_template == CHATML
    assert load_model("org/tiny").name_or_path == "org/tiny"


def test_a_cached_model_can_be_used_offline(repos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(repos / "org" / "tiny")
    first = load_model("org/tiny")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    again = load_model("org/tiny")
    assert all(map(torch.equal, first.parameters(), again.parameters()))


def test_an_adapter_on_the_hub_is_merged_into_its_base_model(repos: Path, tmp_path: Path) -> None:
    saved(repos / "org" / "tiny")
    tuned = adapted(repos / "org" / "tuned", repos / "org" / "tiny")
    expected = load_model(str(tuned), dtype="float32")
    config = json.loads((tuned / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "org/tiny"
    (tuned / "adapter_config.json").write_text(json.dumps(config))
    ref = resolve_model("org/tuned")
    assert ref.kind is ModelKind.ADAPTER and Path(ref.path).is_relative_to(tmp_path / "cache")
    loaded = load_model("org/tuned", dtype="float32")
    assert all(map(torch.equal, expected.parameters(), loaded.parameters()))
    assert load_tokenizer("org/tuned").chat_template == CHATML


def test_an_unknown_hub_id_is_rejected(repos: Path) -> None:
    with pytest.raises(ConfigError, match="org/nothing"):
        resolve_model("org/nothing")


@pytest.mark.parametrize("name", ["smolm2", "SmolLM-2"])
def test_a_mistyped_smollm2_is_suggested_without_network(name: str) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'smollm2'"):
        resolve_model(name)


@pytest.mark.parametrize("load", [load_tokenizer, load_model])
@pytest.mark.parametrize("name", ["org/gated", "org/gated-adapter"])
def test_a_gated_model_is_rejected(repos: Path, load: Callable[[str], Any], name: str) -> None:
    saved(repos / "org" / "gated")
    (repos / "org" / "gated-adapter").mkdir()
    (repos / "org" / "gated-adapter" / "adapter_config.json").touch()
    with pytest.raises(ConfigError, match=f"^{name} is gated"):
        load(name)
