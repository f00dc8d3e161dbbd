"""The reasoning_gym library, held by child processes: this module is their parent.

The library needs a process of its own. Questions depend on PYTHONHASHSEED and on the global random
numbers; generators print; scorers hand the answer to `eval`, and an answer such as 9**9**9 would
stop a server for good. In a child the hash seed is 0 and an overlong answer costs the child alone.
What the children do is in `generate.py`.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from ludus.errors import did_you_mean

QUESTION_LIMIT = 120.0
SCORE_LIMIT = 10.0
"""Seconds that a question may take to make, and an answer to score."""
MOST_CHILDREN = min(8, os.cpu_count() or 1)
PATIENCE = 0.5
"""Seconds to wait for a busy child before another one is started."""

_SETTINGS = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class ChildLost(RuntimeError):
    """The child ended before it replied."""


class TookTooLong(ChildLost):
    """The child ended because it went over the time limit of the request."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what is known about it."""

    text: str
    answer: str | None
    metadata: dict[str, Any]
    entry: str
    """The library's own record of it, which only the children can open."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """Questions by index. Make one with `DataSet.of`, which checks the name and the size."""

    name: str
    config: Mapping[str, Any]
    seed: int
    size: int

    @classmethod
    def of(cls, name: str, config: Mapping[str, Any], *, seed: int, size: int) -> DataSet:
        if name not in names():
            hint = did_you_mean(name, names(), "See `ludus envs reasoning_gym`.")
            raise ValueError(f"reasoning_gym has no data set {name!r}. {hint}")
        if size < 1:
            raise ValueError(f"A data set holds at least one question, and not {size}.")
        if {"seed", "size"} & config.keys():
            raise ValueError("seed and size are arguments of reset, beside dataset_config.")
        return cls(name, dict(config), seed, size)

    def question(self, index: int) -> Question:
        try:
            reply = _ask("question", limit=QUESTION_LIMIT, **self._identity(), index=index)
        except TookTooLong:
            raise ValueError(
                f"{self.name} made no question in {QUESTION_LIMIT:g} s. "
                "Ask for easier ones with dataset_config."
            ) from None
        if "refused" in reply:
            raise ValueError(self._refusal(reply["refused"], reply["fields"]))
        made = reply["value"]
        return Question(made["question"], made["answer"], made["metadata"], made["entry"])

    def score(self, question: Question, answer: str) -> float:
        """What the answer is worth; nothing, if the library cannot tell within the time limit."""
        sent = {**self._identity(), "entry": question.entry, "answer": answer}
        try:
            return float(_ask("score", limit=SCORE_LIMIT, **sent)["value"])
        except TookTooLong:
            return 0.0

    def _identity(self) -> dict[str, Any]:
        return {"name": self.name, "config": self.config, "seed": self.seed, "size": self.size}

    def _refusal(self, why: str, fields: list[str]) -> str:
        known = f"Its fields: {', '.join(fields) or 'none'}."
        for field in self.config:
            if field not in fields:
                hint = did_you_mean(field, fields, known)
                return f"The config of {self.name} has no field {field!r}. {hint}"
        return f"{self.name} does not take this dataset_config: {why.rstrip('.')}. {known}"


@cache
def names() -> tuple[str, ...]:
    """Every data set that the library has, sorted."""
    return tuple(_ask("names", limit=QUESTION_LIMIT)["value"])


class Child:
    """One child process; it answers one request at a time, and ends with this process."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "ludus.envs.reasoning_gym.generate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_SETTINGS, "PYTHONPATH": path},
            # Some questions are about programs, which are run and may write files.
            cwd=tempfile.gettempdir(),
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: bytes) -> dict[str, Any]:
        pipes = self._process
        assert pipes.stdin is not None and pipes.stdout is not None
        reply = b""
        with suppress(BrokenPipeError):
            pipes.stdin.write(request + b"\n")
            pipes.stdin.flush()
            reply = pipes.stdout.readline()
        if not reply.endswith(b"\n"):
            status = pipes.wait()
            late = hasattr(signal, "SIGALRM") and status == -signal.SIGALRM
            raise (TookTooLong if late else ChildLost)(
                f"The process of the reasoning_gym library ended with status {status}."
            )
        return dict(json.loads(reply))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


class Children:
    """As many children as there are requests that would else have to wait, within a limit."""

    def __init__(self) -> None:
        self._idle: queue.LifoQueue[Child] = queue.LifoQueue()
        self._all: set[Child] = set()
        self._lock = threading.Lock()

    def ask(self, request: bytes) -> dict[str, Any]:
        child = self._take()
        try:
            reply = child.ask(request)
        except BaseException:
            # Its pipe may hold half a message now.
            self._drop(child)
            raise
        self._idle.put(child)
        return reply

    def end(self) -> None:
        for child in tuple(self._all):
            self._drop(child)

    def _take(self) -> Child:
        while True:
            try:
                child = self._idle.get(timeout=PATIENCE if self._all else 0)
            except queue.Empty:
                with self._lock:
                    if len(self._all) < MOST_CHILDREN:
                        child = Child()
                        self._all.add(child)
                        return child
                continue
            if child.alive:
                return child
            self._drop(child)

    def _drop(self, child: Child) -> None:
        child.end()
        with self._lock:
            self._all.discard(child)


_children = Children()
_of_the_parent: list[Children] = []


def _ask(do: str, *, limit: float, **arguments: Any) -> dict[str, Any]:
    request = to_json({"do": do, "limit": limit, "with": arguments})
    try:
        return _children.ask(request)
    except TookTooLong:
        raise
    except ChildLost:
        # Something outside ended it: the request is as good as it was.
        return _children.ask(request)


def _start_afresh() -> None:
    """In a forked process: the pipes are still the parent's, and stay open unused."""
    global _children
    _of_the_parent.append(_children)
    _children = Children()


atexit.register(lambda: _children.end())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
