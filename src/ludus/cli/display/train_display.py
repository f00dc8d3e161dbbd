"""How training shows itself, in the status display of a command or as JSON if asked; and what
Ctrl-C means to it: once after this step, twice at once.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from ludus.cli.display.console import console, escape_control_chars
from ludus.cli.display.sft_progress import TrainMetrics
from ludus.cli.display.status import PhaseView, Status, bar_line, stderr_status
from ludus.rollout.progress import PhaseProgress

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_CODES = {"interrupted": 130, "terminated": 143}
_STOPPING_NOTICE = "Stopping after this step; Ctrl-C again stops at once."
_STOP_REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class TrainDisplay:
    """Told how training goes, and shows it: its phases, and from the first step on the story."""

    def __init__(
        self, metrics: TrainMetrics, status: Status, on_checked: Callable[[], None] | None = None
    ) -> None:
        self.metrics = metrics
        self.stopping: str | None = None
        self.has_begun = False
        self._status, self._on_checked = status, on_checked

    def phase(self, progress: PhaseProgress) -> None:
        """Another phase begins; between two steps the story goes on being shown with it."""
        view = PhaseView(progress)
        self._status.show(StepsView(self.metrics, view) if self.metrics.total_steps else view)

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        if self._on_checked is not None:
            self._on_checked()
        self.has_begun = True
        self.metrics.begin(total_steps, resumed_from)
        self.phase(PhaseProgress("Training"))

    def step(self, line: Mapping[str, Any]) -> None:
        """Keep the newest figures, and show them."""
        self.metrics.add(line)
        if self.metrics.is_step_complete(line):
            self._status.refresh()

    def say(self, words: str) -> None:
        """Something worth knowing."""
        self._status.print_line(words, "dim")

    def __enter__(self) -> Self:
        self._status.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.__exit__(*error)


class StepsView:
    """The steps so far and the figures of the story, and the phase that the next step is in."""

    def __init__(self, story: TrainMetrics, phase: PhaseView) -> None:
        self._metrics, self._phase = story, phase

    @property
    def headline(self) -> str | None:
        return self._phase.headline

    def log_line(self) -> str:
        story = self._metrics
        steps = ", ".join([f"step {story.step:,}/{story.total_steps:,}", *story.log_texts()])
        return f"{steps}; {self._phase.log_line()}" if self._phase.has_counts else steps

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        story = self._metrics
        said = [f"{story.step:,}/{story.total_steps:,}", *story.heading_texts()]
        head = bar_line("", said, total=story.total_steps, done=story.step)
        below = Table.grid(padding=(0, 2))
        for name, words in story.rows(ascii_only=console(stderr=True).options.ascii_only):
            below.add_row(Text(name, style="bold"), Text(escape_control_chars(words)))
        return Group(head, below, self._phase.render())


class JsonTrainDisplay(TrainDisplay):
    """One JSON object a line, on what is stdout now: others may be sent elsewhere later."""

    def __init__(self, metrics: TrainMetrics, on_checked: Callable[[], None] | None = None) -> None:
        super().__init__(metrics, Status(), on_checked)
        self._stream = sys.stdout

    def phase(self, progress: PhaseProgress) -> None:
        if progress.in_log:
            self._emit("phase", phase=progress.phase)

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        super().begin(total_steps, resumed_from)
        self._emit("begin", total_steps=total_steps, resumed_from=resumed_from)

    def step(self, line: Mapping[str, Any]) -> None:
        super().step(line)
        left = self.metrics.seconds_left
        self._emit("step", **line, seconds_left=None if left is None else round(left, 1))

    def say(self, words: str) -> None:
        self._emit("said", message=words)

    def _emit(self, kind: str, **facts: Any) -> None:
        from ludus.data.jsonable import to_jsonable

        line = json.dumps(to_jsonable({"event": kind, **facts}), allow_nan=False)
        print(line, file=self._stream, flush=True)


@contextmanager
def training_progress(method: str = "sft") -> Iterator[TrainDisplay]:
    """A display for `ludus.sft`, `ludus.dpo` and `ludus.grpo` in scripts and notebooks.

        with ludus.training_progress("grpo") as watch:
            ludus.grpo("wordle", "models/wordle", "models/wordle-grpo", watch=watch)

    Ctrl-C stops after the step under way, and the same call goes on from there.
    """
    from ludus.cli.display.grpo_progress import GRPOMetrics

    with train_display(
        GRPOMetrics() if method == "grpo" else TrainMetrics(), as_json=False
    ) as watch:
        yield watch


@contextmanager
def train_display(
    metrics: TrainMetrics | None = None,
    *,
    as_json: bool,
    quiet: bool = False,
    on_checked: Callable[[], None] | None = None,
) -> Iterator[TrainDisplay]:
    """The display that fits where the output goes; `checked` is called before the first step."""
    metrics = metrics or TrainMetrics()
    shown = (
        JsonTrainDisplay(metrics, on_checked)
        if as_json and not quiet
        else TrainDisplay(metrics, Status() if quiet else stderr_status(), on_checked)
    )
    # Only the process that writes is told when it begins; the others stop when it does.
    shown.has_begun = quiet
    with shown, _stop_on_signal(shown):
        yield shown


@contextmanager
def _stop_on_signal(shown: TrainDisplay) -> Iterator[None]:
    """Signals end training after the step that is under way; before the first one, at once."""

    def hear(number: int, frame: FrameType | None) -> None:
        if not shown.has_begun and number == signal.SIGTERM:
            raise SystemExit(EXIT_CODES["terminated"])
        if not shown.has_begun or shown.stopping is not None:
            raise KeyboardInterrupt
        shown.stopping = _STOP_REASONS[signal.Signals(number)]
        # Not said here: a signal may come in the middle of a print, which cannot be entered twice.
        Thread(target=shown.say, args=(_STOPPING_NOTICE,), daemon=True).start()

    before = {number: signal.getsignal(number) for number in _STOP_REASONS}
    # A job in the background is told by its shell to ignore interrupts, and goes on doing so.
    heard = {number: was for number, was in before.items() if was is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, was in heard.items():
            signal.signal(number, was)
