"""The display of `ludus train`: a status display on stderr, or JSON events on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from ludus.cli.display.console import console, escape_control_chars
from ludus.cli.display.progress_bar import bar_line
from ludus.cli.display.signals import handle_signals
from ludus.cli.display.status import PhaseView, Status, stderr_status
from ludus.cli.display.train_metrics import TrainMetrics
from ludus.cli.program import name_flags
from ludus.rollout.progress import PhaseProgress

if TYPE_CHECKING:
    from rich.console import RenderableType

_STOPPING_NOTICE = "Stopping after this step; Ctrl-C again stops at once."


class TrainDisplay:
    """Shows the phases of a training, and from the first step on its metrics.

    `stopping` is the stop reason after a signal; the trainer reads it after each step.
    `on_checked` is called before the first step.
    """

    def __init__(
        self, metrics: TrainMetrics, status: Status, on_checked: Callable[[], None] | None = None
    ) -> None:
        self.metrics = metrics
        self.stopping: str | None = None
        self.has_begun = False
        self._status, self._on_checked = status, on_checked

    def phase(self, progress: PhaseProgress) -> None:
        """Show a phase; once training has begun, below the metrics."""
        view = PhaseView(progress)
        self._status.show(StepsView(self.metrics, view) if self.metrics.total_steps else view)

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        if self._on_checked is not None:
            self._on_checked()
        self.has_begun = True
        self.metrics.begin(total_steps, resumed_from)
        self.phase(PhaseProgress("Training"))

    def step(self, line: Mapping[str, Any]) -> None:
        """Add a line of the log, and show it once its step is complete."""
        self.metrics.add(line)
        if self.metrics.is_step_complete(line):
            self._status.refresh()

    def say(self, message: str) -> None:
        """Print a notice that stays."""
        self._status.print_line(name_flags(message), "dim")

    def request_stop(self, reason: str, count: int) -> bool:
        """Stop after the current step; False before the first step and on a second signal."""
        if not self.has_begun or self.stopping is not None:
            return False
        self.stopping = reason
        # From a thread: the signal may have interrupted a print, whose lock is not reentrant.
        Thread(target=self.say, args=(_STOPPING_NOTICE,), daemon=True).start()
        return True

    def __enter__(self) -> Self:
        self._status.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.__exit__(*error)


class StepsView:
    """Steps so far and their metrics, above the current phase."""

    def __init__(self, metrics: TrainMetrics, phase: PhaseView) -> None:
        self._metrics, self._phase = metrics, phase

    @property
    def headline(self) -> str | None:
        return self._phase.headline

    def log_line(self) -> str:
        metrics = self._metrics
        steps = ", ".join([f"step {metrics.step:,}/{metrics.total_steps:,}", *metrics.log_texts()])
        return f"{steps}; {self._phase.log_line()}" if self._phase.has_counts else steps

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        metrics = self._metrics
        texts = [f"{metrics.step:,}/{metrics.total_steps:,}", *metrics.heading_texts()]
        heading = bar_line("", texts, total=metrics.total_steps, done=metrics.step)
        table = Table.grid(padding=(0, 2))
        for name, text in metrics.rows(ascii_only=console(stderr=True).options.ascii_only):
            table.add_row(Text(name, style="bold"), Text(escape_control_chars(text)))
        return Group(heading, table, self._phase.render())


class JsonTrainDisplay(TrainDisplay):
    """Prints one JSON object per line, on the stdout of its creation: that may be redirected."""

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

    def say(self, message: str) -> None:
        self._emit("said", message=name_flags(message))

    def _emit(self, kind: str, **fields: Any) -> None:
        from ludus.data.json_files import to_jsonable

        line = json.dumps(to_jsonable({"event": kind, **fields}), allow_nan=False)
        print(line, file=self._stream, flush=True)


@contextmanager
def training_progress(method: str = "sft") -> Iterator[TrainDisplay]:
    """Create a progress display for `ludus.sft`, `ludus.dpo` and `ludus.grpo` in scripts.

        with ludus.training_progress("grpo") as progress:
            ludus.grpo("wordle", "models/wordle", "models/wordle-grpo", progress=progress)

    Ctrl-C stops after the current step; the same call resumes there.
    """
    from ludus.cli.display.grpo_metrics import GRPOMetrics

    metrics = GRPOMetrics() if method == "grpo" else TrainMetrics()
    with train_display(metrics, as_json=False) as display:
        yield display


@contextmanager
def train_display(
    metrics: TrainMetrics | None = None,
    *,
    as_json: bool,
    quiet: bool = False,
    on_checked: Callable[[], None] | None = None,
) -> Iterator[TrainDisplay]:
    """Show training and handle signals; `quiet`: show nothing, on ranks other than 0."""
    metrics = metrics or TrainMetrics()
    if as_json and not quiet:
        display: TrainDisplay = JsonTrainDisplay(metrics, on_checked)
    else:
        display = TrainDisplay(metrics, Status() if quiet else stderr_status(), on_checked)
    # Only rank 0 is told when training begins; the other ranks stop after a step when it does.
    display.has_begun = quiet
    with display, handle_signals(display.request_stop):
        yield display
