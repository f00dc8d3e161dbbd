"""A viewer over some folders, on a real port of the loopback interface."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any
from urllib.parse import urlencode

from ludus.data.episode import Episode, StopReason
from ludus.data.messages import Call, Function, Message
from ludus.serve.listening import bind_socket
from ludus.viewer.app import HOST, build_viewer_server
from ludus.viewer.library import Library

TINY_WAIT_S = 0.02


@dataclass(frozen=True, slots=True)
class Viewed:
    """A running viewer."""

    address: str
    library: Library

    def get(self, name: str, **params: Any) -> Any:
        status, answer = self.request(f"{self.address}api/{name}?{urlencode(params, doseq=True)}")
        assert status == 200, answer
        return answer

    def request(self, url: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """The status, and the answer: as JSON where it is."""
        request = urllib.request.Request(url, headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request) as response:
                status, content = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode()

    def wait_until_indexed(self) -> None:
        wait_until(lambda: self._is_indexed())

    def _is_indexed(self) -> bool:
        assert not self.library.index.error
        done, total = self.library.index.progress
        return done == total


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(TINY_WAIT_S)


@contextmanager
def viewing(*folders: Path) -> Iterator[Viewed]:
    addresses: SimpleQueue[str] = SimpleQueue()
    with bind_socket(HOST, 0) as bound, Library(folders) as library:
        server = build_viewer_server(library, bound, addresses.put)
        thread = Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield Viewed(addresses.get(timeout=60), library)
        finally:
            server.should_exit = True
            thread.join()


def make_episode(number: int, reply: str, **fields: Any) -> Episode:
    """An attempt at a task: one question, one call of a tool with the reply."""
    call = Call(
        id=f"call_{number}", function=Function(name="say", arguments=json.dumps({"text": reply}))
    )
    messages = (
        Message(role="user", content="Say something."),
        Message(role="assistant", content=reply, tool_calls=(call,)),
        Message(role="tool", content="Heard.", tool_call_id=call.id),
    )
    defaults: dict[str, Any] = {
        "episode_id": f"0badcafe-{number:06d}",
        "stop_reason": StopReason.DONE,
        "reward": float(number),
        "environment": "talk",
        "group_id": "0001",
        "agent": {"provider": "stand-in"},
        "messages": messages,
        "turn_rewards": (float(number),),
        "turns": 1,
        "tool_calls": 1,
    }
    return Episode(**{**defaults, **fields})


def write_episodes(folder: Path, *episodes: Episode) -> Path:
    """Append episodes to the file of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "episodes.jsonl"
    with file.open("ab") as lines:
        lines.writelines(episode.to_line() for episode in episodes)
    return file
