"""How training shows itself, drawn on a terminal, in lines elsewhere, as JSON if asked; and what
Ctrl-C means to it: once after this step, twice at once.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Any

from ludus.cli.console import console, harmless
from ludus.cli.story import Story

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

EVERY = 10.0
"""Seconds between two plain lines."""
EXIT_CODES = {"interrupted": 130, "terminated": 143}
_BAR = 30
_STOPPING = "Stopping after this step; Ctrl-C again stops at once."
_REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Display:
    """Told how training goes. This one shows nothing: another process does."""

    def __init__(self, story: Story, checked: Callable[[], None] | None = None) -> None:
        self.story = story
        self.stopping: str | None = None
        self._checked = checked
        self.begun = False

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        if self._checked is not None:
            self._checked()
        self.begun = True
        self.story.begin(total_steps, resumed_from)

    def step(self, line: Mapping[str, Any]) -> None:
        """Keep the newest figures, and show them."""
        self.story.add(line)
        self.show(line)

    def say(self, words: str) -> None:
        """Something worth knowing."""

    def show(self, line: Mapping[str, Any]) -> None:
        """A line was logged."""

    def close(self) -> None:
        """Nothing more will happen."""


class LiveDisplay(Display):
    """A bar that keeps itself up to date, and below it what else the story tells."""

    _live: Live | None = None

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        from rich.live import Live

        super().begin(total_steps, resumed_from)
        self._live = Live(
            console=console(stderr=True), get_renderable=self._picture, transient=True
        )
        self._live.start()

    def show(self, line: Mapping[str, Any]) -> None:
        if self._live is not None:
            self._live.refresh()

    def say(self, words: str) -> None:
        from rich.text import Text

        console(stderr=True).print(Text(harmless(words), style="dim"))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        story = self.story
        head, below = Table.grid(padding=(0, 1)), Table.grid(padding=(0, 2))
        bar = ProgressBar(total=story.total, completed=story.step, width=_BAR)
        said = [f"{story.step:,}/{story.total:,}", *story.heading()]
        head.add_row(bar, Text("  ".join(said)))
        for name, words in story.rows(ascii_only=console(stderr=True).options.ascii_only):
            below.add_row(Text(name, style="bold"), Text(harmless(words)))
        return Group(head, below)


class PlainDisplay(Display):
    """Lines for a log file, now and then."""

    _said = float("-inf")

    def show(self, line: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self._said >= EVERY and self.story.is_whole(line):
            self._said = now
            story = self.story
            self.say(", ".join([f"step {story.step:,}/{story.total:,}", *story.words()]))

    def say(self, words: str) -> None:
        print(harmless(words), file=sys.stderr, flush=True)


class JsonDisplay(Display):
    """One JSON object a line, on what is stdout now: others may be sent elsewhere later."""

    def __init__(self, story: Story, checked: Callable[[], None] | None = None) -> None:
        super().__init__(story, checked)
        self._to = sys.stdout

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        super().begin(total_steps, resumed_from)
        self._event("begin", total_steps=total_steps, resumed_from=resumed_from)

    def show(self, line: Mapping[str, Any]) -> None:
        left = self.story.seconds_left
        self._event("step", **line, seconds_left=None if left is None else round(left, 1))

    def say(self, words: str) -> None:
        self._event("said", message=words)

    def _event(self, kind: str, **facts: Any) -> None:
        from ludus.train.facts import plain

        line = json.dumps(plain({"event": kind, **facts}), allow_nan=False)
        print(line, file=self._to, flush=True)


@contextmanager
def display(
    story: Story | None = None,
    *,
    as_json: bool,
    quiet: bool = False,
    checked: Callable[[], None] | None = None,
) -> Iterator[Display]:
    """The display that fits where the output goes; `checked` is called before the first step."""
    kind = Display if quiet else JsonDisplay if as_json else _on_stderr()
    shown = kind(story or Story(), checked)
    # Only the process that writes is told when it begins; the others stop when it does.
    shown.begun = quiet
    try:
        with _hearing(shown):
            yield shown
    finally:
        shown.close()


def _on_stderr() -> type[Display]:
    return LiveDisplay if console(stderr=True).is_terminal else PlainDisplay


@contextmanager
def _hearing(shown: Display) -> Iterator[None]:
    """Signals end training after the step that is under way; before the first one, at once."""

    def hear(number: int, frame: FrameType | None) -> None:
        if not shown.begun and number == signal.SIGTERM:
            raise SystemExit(EXIT_CODES["terminated"])
        if not shown.begun or shown.stopping is not None:
            raise KeyboardInterrupt
        shown.stopping = _REASONS[signal.Signals(number)]
        # Not said here: a signal may come in the middle of a print, which cannot be entered twice.
        Thread(target=shown.say, args=(_STOPPING,), daemon=True).start()

    before = {number: signal.getsignal(number) for number in _REASONS}
    # A job in the background is told by its shell to ignore interrupts, and goes on doing so.
    heard = {number: was for number, was in before.items() if was is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, was in heard.items():
            signal.signal(number, was)
