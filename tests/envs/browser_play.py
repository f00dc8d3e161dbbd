"""Playing on a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ludus.envs.browsergym import BrowserGym
from ludus.envs.browsergym.page import Element
from ludus.envs.browsergym.worker import browser_pool
from ludus.protocol.types import CallToolAction, CallToolObservation, Observation


@contextmanager
def open_environment() -> Iterator[BrowserGym]:
    """An environment whose browser runs to the end of the block, and leaves nothing behind."""
    environment = BrowserGym()
    yield environment
    worker = environment._worker
    environment.close()
    assert worker is not None and worker.alive
    browser_pool().end_idle()
    assert not worker.alive and not Path(worker.folder).exists()


def call(environment: BrowserGym, name: str, **arguments: object) -> CallToolObservation:
    seen = environment.step(CallToolAction(tool_name=name, arguments=arguments))
    assert isinstance(seen, CallToolObservation)
    return seen


def play_oracle(environment: BrowserGym, task_name: str, seed: int) -> list[Observation]:
    return [environment.reset(seed=seed, task_name=task_name), *play_on(environment)]


def play_on(environment: BrowserGym) -> list[Observation]:
    """Let the oracle play to the end, from the present page."""
    seen: list[Observation] = []
    while not seen or not seen[-1].done:
        action = environment.oracle()
        assert action is not None, (environment.task_name, environment.seed, environment.elements)
        seen.append(call(environment, action.name, **action.arguments))
    return seen


def only(environment: BrowserGym, role: str) -> Element:
    (element,) = (each for each in environment.elements if each.role == role)
    return element
