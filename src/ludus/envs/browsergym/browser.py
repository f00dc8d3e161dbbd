"""The program of a worker process: a Chromium that plays MiniWoB++ with BrowserGym.

Unlike BrowserGym's own environment, it makes episodes fast and reproducible: the browser is kept
between episodes, time in the page is virtual (`page_clock.js`), and no request leaves the browser.
Tasks, marks (bids) and the accessibility tree are BrowserGym's.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import queue
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from browsergym.core import observation as extraction
from browsergym.core.constants import BROWSERGYM_ID_ATTRIBUTE
from browsergym.miniwob.base import AbstractMiniwobTask
from browsergym.utils.obs import flatten_axtree_to_str
from playwright.sync_api import Browser as PlaywrightBrowser
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Locator, Page, Playwright, Route, sync_playwright

from ludus.environment.worker_processes import open_worker_pipes
from ludus.envs.browsergym.page import ORIGIN, page_file, read_tree
from ludus.envs.browsergym.worker import CLEANUP_TIMEOUT_S, kill_descendants, remove_folder

if TYPE_CHECKING:
    from ludus.data.tool_schema import JsonObject

ACTION_TIME_MS = 1000
"""Virtual time that passes in the page with every action: animations end."""
EPISODE_TIME_MS = 2**31 - 1
"""Virtual time after which MiniWoB++ ends an episode: more than any episode takes."""
ELEMENT_TIMEOUT_MS = 10_000
"""Time for an action on an element that can be reached."""
EPISODES_PER_CONTEXT = 100
"""Episodes after which a new context is opened, to free the memory of the renderer."""
_PR_SET_CHILD_SUBREAPER = 36
MAX_EXTRACTIONS = 5
"""How often the page is read again if it changes meanwhile."""

_CLOCK_SCRIPT = Path(__file__).with_name("page_clock.js")
_VISIBLE_POINT_SCRIPT = Path(__file__).with_name("visible_point.js").read_text()
_CLASSES_SCRIPT = """() => Object.fromEntries(
    [...document.querySelectorAll('[bid][class]')].map(
        each => [each.getAttribute('bid'), each.getAttribute('class')]))"""
_TEXTS_SCRIPT = """() => Object.fromEntries(
    [...document.querySelectorAll('textarea[bid], input[bid]')]
        .filter(each => /^(textarea|text|password|number|search|email|tel|url)$/.test(each.type))
        .map(each => [each.getAttribute('bid'), each.value]))"""
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
"""Of the files whose type has to name their encoding."""


class ActionRefused(Exception):
    """The action cannot be carried out; the message is for the model."""


class BrowserSession:
    """One browser, and the page of the running episode in it."""

    def __init__(self, executable_path: str) -> None:
        self._playwright: Playwright = sync_playwright().start()
        self._playwright.selectors.set_test_id_attribute(BROWSERGYM_ID_ATTRIBUTE)
        self._browser: PlaywrightBrowser = self._playwright.chromium.launch(
            executable_path=executable_path,
            headless=True,
            chromium_sandbox=os.geteuid() != 0,
            args=[
                "--disable-features=OverlayScrollbars,ExtendedOverlayScrollbars,"
                "SpareRendererForSitePerProcess",
                "--disable-smooth-scrolling",
                "--disable-crash-reporter",
                "--host-resolver-rules=MAP * ~NOTFOUND",
            ],
            ignore_default_args=["--hide-scrollbars"],
        )
        self._page: Page
        self._task: AbstractMiniwobTask
        self._screenshot = False
        self._episodes = 0

    def start_episode(self, task_name: str, seed: int, screenshot: bool) -> JsonObject:
        """Open the page of a task; returns the goal and the first observation.

        The tab of the last episode is used again, because the pages of MiniWoB++ store nothing.
        """
        task_class = type(task_name, (AbstractMiniwobTask,), {"subdomain": task_name})
        self._task = task_class(
            seed=seed, base_url=f"{ORIGIN}/miniwob/", episode_max_time=EPISODE_TIME_MS
        )
        self._screenshot = screenshot
        if self._episodes % EPISODES_PER_CONTEXT == 0:
            self._open_context()
        self._episodes += 1
        # The mouse stays where it was, and what is below it may look different.
        self._page.mouse.move(0, 0)
        goal, _ = self._task.setup(self._page)
        self._page.evaluate("window.__ludus_episode = true")
        self._pass_time(ACTION_TIME_MS)
        return {"goal": goal, **self._observe()}

    def _open_context(self) -> None:
        """Open a page in a new context, which takes longer than all the rest of a reset."""

        def answer_request(route: Route) -> None:
            """Answer requests for MiniWoB++'s files, and no others."""
            if (file := page_file(route.request.url)) is None:
                route.abort()
            else:
                route.fulfill(path=file, content_type=_MEDIA_TYPES.get(file.suffix))

        for context in self._browser.contexts:
            context.close()
        context = self._browser.new_context(
            viewport=self._task.viewport, locale="en-US", timezone_id="UTC"
        )
        context.set_default_timeout(ELEMENT_TIMEOUT_MS)
        context.add_init_script(path=_CLOCK_SCRIPT)
        context.route("**/*", answer_request)
        self._page = context.new_page()

    def act(self, action: str, arguments: JsonObject) -> JsonObject:
        """Carry out an action; returns the observation after it, or why it was refused."""
        wait_ms = ACTION_TIME_MS
        try:
            match action:
                case "click":
                    self._page.mouse.click(*self._visible_point(arguments["bid"]))
                case "fill":
                    self._fill(**arguments)
                case "press":
                    self._locate(arguments["bid"]).focus()
                    self._page.keyboard.press(arguments["key_comb"])
                case "scroll":
                    viewport = self._task.viewport
                    middle = viewport["width"] / 2, viewport["height"] / 2
                    bid = arguments["bid"]
                    self._page.mouse.move(*(self._visible_point(bid) if bid else middle))
                    self._page.mouse.wheel(arguments["delta_x"], arguments["delta_y"])
                    # The browser scrolls when it draws.
                    self._page.evaluate("() => __ludus_clock.waitForPaint()")
                case "noop":
                    wait_ms = arguments["wait_ms"]
        except ActionRefused as error:
            return {"refusal": str(error)}
        except PlaywrightError as error:
            # What the browser itself says: unknown key, element is not a text field, and so on.
            # If it has crashed or hangs, then this fails, or takes too long for the parent.
            self._page.evaluate("() => true")
            return {"refusal": error.message.partition("\n")[0].strip()}
        self._pass_time(wait_ms)
        return {"refusal": None, **self._observe()}

    def _locate(self, bid: str) -> Locator:
        element = self._page.get_by_test_id(bid)
        if element.count() != 1:
            raise ActionRefused(f"There is no element [{bid}] on the page; bids are in its list.")
        return element

    def _visible_point(self, bid: str) -> tuple[float, float]:
        """Where to click an element. Time stands still, so that waiting for it would not help."""
        point = self._locate(bid).evaluate(_VISIBLE_POINT_SCRIPT)
        if isinstance(point, str):
            raise ActionRefused(f"Element [{bid}] cannot be reached: {point}.")
        x, y = point
        return x, y

    def _fill(self, bid: str, value: str) -> None:
        self._visible_point(bid)
        element = self._locate(bid)
        if element.evaluate("element => element.readOnly === true"):
            raise ActionRefused(f"Element [{bid}] is read-only.")
        if element.evaluate("element => element.tagName") != "SELECT":
            element.fill(value)
            return
        labels = element.evaluate("element => [...element.options].map(each => each.label)")
        if value not in labels:
            raise ActionRefused(f"There is no option {value!r}. There are: {', '.join(labels)}.")
        element.select_option(label=value)

    def _pass_time(self, milliseconds: float) -> None:
        # The page may be on its way to another one, which has another clock.
        with suppress(PlaywrightError):
            self._page.evaluate("ms => __ludus_clock.advance(ms)", milliseconds)

    def _observe(self) -> JsonObject:
        # If the page was left or loaded again, the task is gone.
        has_left = self._page.url.partition("#")[0] != self._task.url or not self._page.evaluate(
            "() => window.__ludus_episode === true"
        )
        raw_reward, done = 0.0, True
        if not has_left:
            raw_reward, done = self._page.evaluate("() => [WOB_RAW_REWARD_GLOBAL, WOB_DONE_GLOBAL]")
        screenshot = None
        if self._screenshot:
            screenshot = base64.b64encode(self._page.screenshot()).decode("ascii")
        return {
            **self._read_page(),
            "url": self._page.url,
            "raw_reward": float(raw_reward),
            "done": bool(done),
            "has_left": has_left,
            "screenshot": screenshot,
        }

    def _read_page(self) -> JsonObject:
        """The elements of the page, and its accessibility tree as BrowserGym writes it."""
        for attempt in range(1, MAX_EXTRACTIONS + 1):
            try:
                self._page.evaluate("() => { __ludus_clock.native = true }")
                extraction._pre_extract(
                    self._page, tags_to_mark="all", lenient=attempt == MAX_EXTRACTIONS
                )
                snapshot = extraction.extract_dom_snapshot(self._page)
                tree = extraction.extract_merged_axtree(self._page)
                classes = self._page.evaluate(_CLASSES_SCRIPT)
                texts = self._page.evaluate(_TEXTS_SCRIPT)
                extraction._post_extract(self._page)
                self._page.evaluate("() => { __ludus_clock.native = false }")
                break
            except (PlaywrightError, extraction.MarkingError):
                if attempt == MAX_EXTRACTIONS:
                    raise
        properties = extraction.extract_dom_extra_properties(snapshot, scale_factor=1.0)
        clickable = frozenset(bid for bid, each in properties.items() if each["clickable"])
        elements = read_tree(tree["nodes"], clickable=clickable, classes=classes, texts=texts)
        return {
            "elements": [asdict(element) for element in elements],
            "axtree": flatten_axtree_to_str(tree),
        }


def run_browser_worker() -> None:
    """Run the worker process; a request is `[method, arguments]`."""
    if sys.platform == "linux":
        # Processes below this one whose parents have ended become its children.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    incoming, replies = open_worker_pipes()
    requests: queue.SimpleQueue[tuple[str, JsonObject]] = queue.SimpleQueue()
    receiver = threading.Thread(target=_receive, args=(incoming, requests), daemon=True)
    receiver.start()
    session: BrowserSession | None = None
    while True:
        method, arguments = requests.get()
        try:
            if method == "launch":
                session, value = BrowserSession(**arguments), {}
            else:
                value = getattr(session, method)(**arguments)
            reply: JsonObject = {"value": value}
        except Exception as error:
            reply = {"fault": f"{type(error).__name__}: {error}"}
        try:
            replies.write(json.dumps(reply).encode() + b"\n")
            replies.flush()
        except OSError:
            receiver.join()  # The parent is gone: the receiver cleans up and ends the process.


def _receive(incoming: BinaryIO, requests: queue.SimpleQueue[tuple[str, JsonObject]]) -> None:
    """Queue the requests; end the process when the parent closes the pipe or exits."""
    for line in incoming:
        requests.put(json.loads(line))
    # All processes below this one are killed and their exit status collected: no zombie stays.
    deadline = time.monotonic() + CLEANUP_TIMEOUT_S
    with suppress(ChildProcessError):  # None is left.
        while time.monotonic() < deadline:
            kill_descendants(os.getpid())
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.01)
    remove_folder(tempfile.gettempdir())
    os._exit(0)


if __name__ == "__main__":
    run_browser_worker()
