"""As much of the Hub's API as creating a repository and committing files to it needs."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import DatasetCard, ModelCard, SpaceCard

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
_PLACES = {"dataset": "datasets/", "model": "", "space": "spaces/"}


@dataclass
class FakeHub:
    """What it keeps, and how it misbehaves."""

    url: str = ""
    repos: dict[str, bool] = field(default_factory=dict)
    """Whether each is private."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Whether each was asked for as a data set, a model or a Space."""
    files: dict[str, bytes] = field(default_factory=dict)
    """What was committed, by path."""
    messages: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files, by their SHA-256."""
    large: int = 1 << 20
    """From this size on, files go to the large file storage."""
    requests: list[str] = field(default_factory=list)
    fail: dict[str, Any] = field(default_factory=dict)
    """By a part of the path: a status to answer, "drop" or "hang"."""
    let_go: threading.Event = field(default_factory=threading.Event)

    def write_to(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        for name, data in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        """The routes. A request of another kind is a mistake of the test."""
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            _check_card(**json.loads(body))
            return 200, {"errors": [], "warnings": [{"message": "Nobody should see this."}]}
        if "/preupload/" in path:
            return 200, {"files": [self._mode(file) for file in json.loads(body)["files"]]}
        if path.endswith("/info/lfs/objects/batch"):
            return 200, {"objects": [self._slot(item) for item in json.loads(body)["objects"]]}
        if path.startswith("/storage/"):
            self.objects[path.removeprefix("/storage/")] = body
            return 200, {}
        if "/commit/" in path:
            return self._commit([json.loads(line) for line in body.splitlines()])
        if "/tree/" in path:
            listed = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in self.files]
            return 200, listed
        name = re.sub("^/api/(datasets|models|spaces)/", "", path)
        if name in self.repos:
            return 200, {"id": name, "private": self.repos[name], "sha": "0" * 40}
        return 404, {"error": "Repository not found"}

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        name = f"{asked['organization']}/{asked['name']}"
        self.kinds[name] = kind = asked.get("type", "model")
        assert (kind == "space") == ("sdk" in asked), "the Hub asks for the SDK of a Space"
        status = 409 if name in self.repos else 200
        self.repos.setdefault(name, asked.get("visibility") == "private")
        return status, {"url": f"{self.url}/{_PLACES[kind]}{name}", "name": name}

    def _mode(self, file: dict[str, Any]) -> dict[str, Any]:
        mode = "lfs" if file["size"] >= self.large else "regular"
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}

    def _slot(self, item: dict[str, Any]) -> dict[str, Any]:
        if item["oid"] in self.objects:
            return item  # As the Hub: what has arrived is not asked for again.
        return {**item, "actions": {"upload": {"href": f"{self.url}/storage/{item['oid']}"}}}

    def _commit(self, operations: list[dict[str, Any]]) -> tuple[int, Any]:
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "header":
                self.messages.append(value["summary"])
            elif operation["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                self.files[value["path"]] = self.objects[value["oid"]]
            elif operation["key"] == "deletedFile":
                del self.files[value["path"]]
        return 200, {"commitUrl": f"{self.url}/datasets/x/y/commit/1", "commitOid": "1"}


def _check_card(content: str, **asked: Any) -> None:
    """Check the front matter, which the Hub accepts even if it is empty."""
    if asked["repoType"] == "dataset":
        assert vars(DatasetCard(content).data)["configs"]
    elif asked["repoType"] == "space":
        data = vars(SpaceCard(content).data)
        assert data["sdk"] == "docker" and data["app_port"] == 8000
    else:
        assert vars(ModelCard(content).data)["pipeline_tag"]


@contextmanager
def fake_hub(**settings: Any) -> Iterator[FakeHub]:
    """A Hub on loopback that takes one token."""
    hub = FakeHub(**settings)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            pass

        def do_POST(self) -> None:
            path = urlsplit(self.path).path
            hub.requests.append(path)
            body = self._body()
            wrong = next((how for part, how in hub.fail.items() if part in path), None)
            if wrong == "drop":
                self.close_connection = True
            elif wrong == "hang":
                hub.let_go.wait(60)
                self.close_connection = True
            elif wrong is not None:
                self._reply(wrong, {"error": f"No, {self.headers['Authorization']}.\nGo away."})
            elif (
                not path.startswith("/storage/")
                and self.headers["Authorization"] != f"Bearer {TOKEN}"
            ):
                self._reply(401, {"error": "Invalid username or password."})
            else:
                self._reply(*hub.answer(path, body))

        do_GET = do_PUT = do_POST

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def _reply(self, status: int, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.let_go.set()
        server.shutdown()
        thread.join()
        server.server_close()
