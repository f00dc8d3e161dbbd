"""The progress of `ludus train`: the steps with their metrics, above the current phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from ludus.cli.display.console import console, escape_control_chars
from ludus.cli.display.formatting import format_count
from ludus.cli.display.signals import handle_signals
from ludus.cli.display.status import PhaseStatus, Status, bar_line, create_status, time_left
from ludus.cli.flags import name_flags
from ludus.data.training_log import first_and_last_means, metric_values, sparkline
from ludus.rollout.progress import PhaseProgress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ludus.data.tool_schema import JsonObject

LogLine = Mapping[str, Any]
_LOSS_FORMATS = {
    "loss": "loss {:.4f}",
    "eval_loss": "test loss {:.4f}",
    "learning_rate": "lr {:.2e}",
}
_GRPO_ROWS = {
    "groups": {
        "reward_std": "std {:.3f}",
        "zero_variance": "zero variance {:.0%}",
        "trained": "trained on {:.0%}",
        "reward_trained": "their reward {:.3f}",
        "unscored": "unscored {:.0%}",
    },
    "episodes": {
        "length": "{:,.0f} tokens",
        "turns": "{:.1f} turns",
        "format": "format {:.0%}",
        "done": "done {:.0%}",
        "cut_off": "cut off {:.0%}",
    },
    "policy": {
        "entropy": "entropy {:.3f}",
        "sampled_nll": "nll {:.3f}",
        "grad_norm": "grad norm {:.3g}",
        "kl": "kl {:.3g}",
        "learning_rate": "lr {:.2e}",
    },
    "held out": {"eval_reward": "reward {:.3f}", "eval_format": "format {:.0%}"},
    "time": {
        "time/step": "{:.2f} s per step",
        "time/rollout": "rollout {:.2f} s",
        "time/train": "training {:.2f} s",
        "time/model": "model {:.2f} s per episode",
        "time/environment": "environment {:.2f} s per episode",
    },
}
_GRPO_KEYS = ("reward", "eval_reward", "zero_variance")
_STOPPING_NOTICE = "Stopping after this step; Ctrl-C again stops at once."


class MetricsDisplay:
    """The latest value of every logged metric, and the pace of training."""

    def __init__(self, total_steps: int, resumed_from: int | None = None) -> None:
        self._rewards: list[float] = []
        self.total_steps = total_steps
        self.step = self._first_step = resumed_from or 0
        self._started_at = self._last_logged_at = time.monotonic()
        self._first_tokens: int | None = None
        self.tokens_per_second: float | None = None
        self.latest: JsonObject = {}

    def add(self, line: LogLine) -> None:
        """Show a line of the training log."""
        self.step = max(self.step, int(line.get("step") or 0))
        self._last_logged_at = time.monotonic()
        # A new dict each time, because the redraw thread reads the old one.
        self.latest = {**self.latest, **line}
        self._rewards += metric_values([line], "reward")
        tokens = line.get("tokens")
        if tokens is None:
            return
        # Measured from the first logged line on, so that warm-up does not count.
        if self._first_tokens is None:
            self._first_tokens, self._first_tokens_at = tokens, self._last_logged_at
        elif (elapsed := self._last_logged_at - self._first_tokens_at) > 0:
            self.tokens_per_second = (tokens - self._first_tokens) / elapsed

    @property
    def seconds_left(self) -> float | None:
        """Estimate the time left from the mean step so far, less the time since the last step."""
        done = self.step - self._first_step
        if done <= 0:
            return None
        step_s = (self._last_logged_at - self._started_at) / done
        left = step_s * max(0, self.total_steps - self.step)
        return max(0.0, left - (time.monotonic() - self._last_logged_at))

    def log_texts(self) -> list[str]:
        """Format metrics and pace for a line of a log file."""
        rows = [f"{name} {text}" for name, text in self.rows(ascii_only=True)]
        return [*(rows or format_metrics(self.latest, _LOSS_FORMATS)), *self.pace_texts()]

    def pace_texts(self) -> list[str]:
        """Tokens per second, and the time left."""
        rate = self.tokens_per_second
        return [
            *([f"{format_count(rate)} tokens/s"] if rate else []),
            *(time_left(self.seconds_left) if self.step < self.total_steps else []),
        ]

    def rows(self, *, ascii_only: bool = False) -> list[tuple[str, str]]:
        """Names and texts of the table of GRPO's metrics, below the progress bar."""
        if self.latest.keys().isdisjoint(_GRPO_KEYS):
            return []
        reward = [f"{value:.3f}" for value in self._rewards[-1:]]
        if len(self._rewards) > 1 and (means := first_and_last_means(self._rewards)) is not None:
            reward.append(f"({means[1] - means[0]:+.3f} since the start)")
        reward.append("" if ascii_only else sparkline(self._rewards))
        # The mean reward of each environment or function, if there are several.
        parts = [
            f"{key.removeprefix('rewards/').removesuffix('/mean')} {value:.3f}"
            for key, value in self.latest.items()
            if key.startswith("rewards/") and key.endswith("/mean")
        ]
        rows = {"reward": reward, "parts": parts if len(parts) > 1 else []}
        rows |= {name: format_metrics(self.latest, each) for name, each in _GRPO_ROWS.items()}
        return [
            (name, "  ".join(filter(None, texts))) for name, texts in rows.items() if any(texts)
        ]


def format_metrics(line: LogLine, formats: Mapping[str, str]) -> list[str]:
    """Format those training metrics that a line of the log has."""
    return [form.format(line[key]) for key, form in formats.items() if line.get(key) is not None]


class TrainDisplay:
    """Shows the phases of a training, and from the first step on its metrics above them.

    `stopping` is the stop reason after a signal; the trainer reads it after each step.
    `on_checked` is called before the first step.
    """

    def __init__(self, status: Status, on_checked: Callable[[], None] | None = None) -> None:
        self.stopping: str | None = None
        self.has_begun = False
        self._status, self._on_checked = status, on_checked
        self._metrics: MetricsDisplay | None = None

    def phase(self, progress: PhaseProgress) -> None:
        """Show a phase; once training has begun, below the metrics."""
        view = PhaseStatus(progress)
        self._status.show(StepsView(self._metrics, view) if self._metrics else view)

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        if self._on_checked is not None:
            self._on_checked()
        self.has_begun = True
        self._metrics = MetricsDisplay(total_steps, resumed_from)
        begun = {"phase": "Training", "total_steps": total_steps, "resumed_from": resumed_from}
        self._status.emit("phase", begun)
        self.phase(PhaseProgress("Training"))

    def step(self, line: LogLine) -> None:
        """Add a line of the log."""
        if self._metrics is not None:
            self._metrics.add(line)
            self._status.emit("step", {**line, "seconds_left": self._metrics.seconds_left})
            self._status.refresh()

    def say(self, message: str) -> None:
        """Print a notice that stays."""
        self._status.notify(name_flags(message), "dim")

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

    def __init__(self, metrics: MetricsDisplay, phase: PhaseStatus) -> None:
        self._metrics, self._phase = metrics, phase
        self.headline = phase.headline

    def log_line(self) -> str:
        metrics = self._metrics
        steps = ", ".join([f"step {metrics.step:,}/{metrics.total_steps:,}", *metrics.log_texts()])
        return f"{steps}; {self._phase.log_line()}" if self._phase.has_counts else steps

    def progress(self) -> JsonObject:
        return self._phase.progress()

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        metrics = self._metrics
        rows = metrics.rows(ascii_only=console(stderr=True).options.ascii_only)
        texts = metrics.pace_texts() if rows else metrics.log_texts()
        heading = bar_line(
            "",
            [f"{metrics.step:,}/{metrics.total_steps:,}", *texts],
            total=metrics.total_steps,
            done=metrics.step,
        )
        table = Table.grid(padding=(0, 2))
        for name, text in rows:
            table.add_row(Text(name, style="bold"), Text(escape_control_chars(text)))
        return Group(heading, table, self._phase.render())


@contextmanager
def training_progress(
    *,
    quiet: bool = False,
    as_json: bool = False,
    on_checked: Callable[[], None] | None = None,
) -> Iterator[TrainDisplay]:
    """Create a progress display for `ludus.sft`, `ludus.dpo` and `ludus.grpo` in scripts.

        with ludus.training_progress() as progress:
            ludus.grpo("wordle", "models/wordle", "models/wordle-grpo", progress=progress)

    Ctrl-C stops after the current step; the same call resumes there. `quiet` shows nothing, on
    ranks other than 0; `as_json` prints events as JSON lines on stdout. `on_checked` is called
    before the first step.
    """
    display = TrainDisplay(Status() if quiet else create_status(as_json=as_json), on_checked)
    # Only rank 0 is told when training begins; the other ranks stop after a step when it does.
    display.has_begun = quiet
    with display, handle_signals(display.request_stop):
        yield display
