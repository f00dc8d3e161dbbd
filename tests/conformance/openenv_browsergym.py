"""BrowserGym as OpenEnv's repository serves it: on its bases, with the library's own environment,
and with its observations and rewards."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from conformance.observation_environments import BrowserGymAction, BrowserGymObservation
from ludus.envs.browsergym.page import html_folder
from ludus.envs.browsergym.worker import find_chromium


class BrowserGymEnvironment(Environment[BrowserGymAction, BrowserGymObservation, State]):
    """Playwright's objects belong to the thread that made them."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def __init__(self) -> None:
        super().__init__()
        self._task: Any = None

    def reset(
        self, seed: int | None = None, task_name: str = "", **kwargs: Any
    ) -> BrowserGymObservation:
        import browsergym.miniwob  # noqa: F401, for its registrations
        import gymnasium

        self.close()
        self._task = gymnasium.make(f"browsergym/miniwob.{task_name}", disable_env_checker=True)
        page, _ = self._task.reset(seed=seed)
        return self._observe(page, reward=0.0, done=False)

    def step(self, action: BrowserGymAction, **kwargs: Any) -> BrowserGymObservation:
        page, reward, terminated, truncated, _ = self._task.step(action.action_str)
        return self._observe(page, reward=float(reward), done=terminated or truncated)

    def _observe(self, page: dict[str, Any], *, reward: float, done: bool) -> BrowserGymObservation:
        from browsergym.utils.obs import flatten_axtree_to_str

        tree = flatten_axtree_to_str(page["axtree_object"])
        return BrowserGymObservation(
            text=tree,
            axtree_txt=tree,
            url=page["url"],
            goal=" ".join(each["text"] for each in page["goal_object"] if each["type"] == "text"),
            last_action_error=bool(page["last_action_error"]),
            reward=reward,
            done=done,
        )

    @property
    def state(self) -> State:
        return State()

    def close(self) -> None:
        if self._task is not None:
            self._task.close()
            self._task = None


def install_browser(folder: Path) -> None:
    """Put this machine's Chromium where Playwright looks for its own, below `folder`.

    The library's chat window is a browser of its own, which takes no other path.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = Path(playwright.chromium.executable_path)
    assert program.is_relative_to(folder), "PLAYWRIGHT_BROWSERS_PATH is not set."
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{find_chromium()}" --no-sandbox "$@"\n')
    program.chmod(0o755)


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving_pages() -> Iterator[str]:
    """Serve the pages of MiniWoB++; yields what MINIWOB_URL has to be."""
    handler = functools.partial(_QuietHandler, directory=str(html_folder()))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/miniwob/"
        finally:
            server.shutdown()
