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
from ludus.cli.figures import clock, count

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY = 10.0
"""Seconds between two plain lines."""
EXIT_CODES = {"interrupted": 130, "terminated": 143}
_STOPPING = "Stopping after this step; Ctrl-C again stops at once."
_REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Display:
    """Told how training goes. This one shows nothing: another process does."""

    def __init__(self, checked: Callable[[], None] | None = None) -> None:
        self.stopping: str | None = None
        self._checked = checked
        self.begun = False
        self.total = self.step_now = self._first_step = 0
        self._since = time.monotonic()
        self._first_tokens: int | None = None
        self.speed: float | None = None
        self.newest: dict[str, Any] = {}

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        if self._checked is not None:
            self._checked()
        self.begun = True
        self.total = total_steps
        self.step_now = self._first_step = resumed_from or 0
        self._since = time.monotonic()

    def step(self, line: Mapping[str, Any]) -> None:
        """Keep the newest figures, and show them."""
        self.step_now = max(self.step_now, int(line.get("step") or 0))
        self.newest.update(line)
        self._measure(line.get("tokens"))
        self.show(line)

    def say(self, words: str) -> None:
        """Something worth knowing."""

    def show(self, line: Mapping[str, Any]) -> None:
        """A line was logged."""

    def close(self) -> None:
        """Nothing more will happen."""

    @property
    def seconds_left(self) -> float | None:
        done = self.step_now - self._first_step
        if done <= 0:
            return None
        return (time.monotonic() - self._since) / done * max(0, self.total - self.step_now)

    def words(self) -> list[str]:
        """How things stand: loss, rate, speed, time left."""
        loss, test = self.newest.get("loss"), self.newest.get("eval_loss")
        rate, left = self.newest.get("learning_rate"), self.seconds_left
        parts = (
            f"loss {loss:.4f}" if loss is not None else "",
            f"test loss {test:.4f}" if test is not None else "",
            f"lr {rate:.2e}" if rate is not None else "",
            f"{count(self.speed)} tokens/s" if self.speed else "",
            f"{clock(left)} left" if left is not None else "",
        )
        return [part for part in parts if part]

    def _measure(self, tokens: int | None) -> None:
        """Tokens a second, from the first logged line on: before it came the warm-up."""
        if tokens is None:
            return
        if self._first_tokens is None:
            self._first_tokens, self._first_at = tokens, time.monotonic()
        elif (passed := time.monotonic() - self._first_at) > 0:
            self.speed = (tokens - self._first_tokens) / passed


class LiveDisplay(Display):
    """A bar that keeps itself up to date."""

    _bar: Progress | None = None

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        super().begin(total_steps, resumed_from)
        columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=total_steps, completed=self.step_now)
        self._bar.start()

    def show(self, line: Mapping[str, Any]) -> None:
        if self._bar is not None:
            words = "  ".join(self.words())
            self._bar.update(self._task, completed=self.step_now, description=words)

    def say(self, words: str) -> None:
        from rich.text import Text

        console(stderr=True).print(Text(harmless(words), style="dim"))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


class PlainDisplay(Display):
    """Lines for a log file, now and then."""

    _said = float("-inf")

    def show(self, line: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self._said >= EVERY:
            self._said = now
            self.say(", ".join([f"step {self.step_now:,}/{self.total:,}", *self.words()]))

    def say(self, words: str) -> None:
        print(harmless(words), file=sys.stderr, flush=True)


class JsonDisplay(Display):
    """One JSON object a line, on what is stdout now: others may be sent elsewhere later."""

    def __init__(self, checked: Callable[[], None] | None = None) -> None:
        super().__init__(checked)
        self._to = sys.stdout

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        super().begin(total_steps, resumed_from)
        self._event("begin", total_steps=total_steps, resumed_from=resumed_from)

    def show(self, line: Mapping[str, Any]) -> None:
        left = self.seconds_left
        self._event("step", **line, seconds_left=None if left is None else round(left, 1))

    def say(self, words: str) -> None:
        self._event("said", message=words)

    def _event(self, kind: str, **facts: Any) -> None:
        from ludus.train.facts import plain

        line = json.dumps(plain({"event": kind, **facts}), allow_nan=False)
        print(line, file=self._to, flush=True)


@contextmanager
def display(
    *, as_json: bool, quiet: bool = False, checked: Callable[[], None] | None = None
) -> Iterator[Display]:
    """The display that fits where the output goes; `checked` is called before the first step."""
    kind = Display if quiet else JsonDisplay if as_json else _on_stderr()
    shown = kind(checked)
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
