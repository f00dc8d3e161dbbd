"""Metrics and pace of a training, as texts; `train_display` shows them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ludus.cli.display.formatting import format_count
from ludus.cli.display.progress_bar import time_left

_LOSS_FORMATS = {
    "loss": "loss {:.4f}",
    "eval_loss": "test loss {:.4f}",
    "learning_rate": "lr {:.2e}",
}


class TrainMetrics:
    """The latest value of every logged metric, and the pace of training."""

    def __init__(self) -> None:
        self.total_steps = self.step = self._first_step = 0
        self._started_at = self._last_logged_at = time.monotonic()
        self._first_tokens: int | None = None
        self.tokens_per_second: float | None = None
        self.latest: dict[str, Any] = {}

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        self.total_steps = total_steps
        self.step = self._first_step = resumed_from or 0
        self._started_at = self._last_logged_at = time.monotonic()

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line of the log."""
        self.step = max(self.step, int(line.get("step") or 0))
        self._last_logged_at = time.monotonic()
        # A new dict each time, because the redraw thread reads the old one.
        self.latest = {**self.latest, **line}
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
        """Estimate from the mean step so far, less the time since the last step."""
        done = self.step - self._first_step
        if done <= 0:
            return None
        step_s = (self._last_logged_at - self._started_at) / done
        left = step_s * max(0, self.total_steps - self.step)
        return max(0.0, left - (time.monotonic() - self._last_logged_at))

    def is_step_complete(self, line: Mapping[str, Any]) -> bool:
        """Whether no other line follows for the step of this one."""
        return True

    def log_texts(self) -> list[str]:
        """Metrics and pace, for one line of a log file."""
        return [*self.metric_texts(), *self.pace_texts()]

    def heading_texts(self) -> list[str]:
        """Texts beside the progress bar."""
        return self.log_texts()

    def metric_texts(self) -> list[str]:
        return format_metrics(self.latest, _LOSS_FORMATS)

    def pace_texts(self) -> list[str]:
        """Tokens per second, and the time left."""
        rate = self.tokens_per_second
        return [
            *([f"{format_count(rate)} tokens/s"] if rate else []),
            *(time_left(self.seconds_left) if self.step < self.total_steps else []),
        ]

    def rows(self, *, ascii_only: bool = False) -> list[tuple[str, str]]:
        """Names and texts of the table below the progress bar."""
        return []


def format_metrics(line: Mapping[str, Any], formats: Mapping[str, str]) -> list[str]:
    """Format those training metrics that a line of the log has."""
    return [form.format(line[key]) for key, form in formats.items() if line.get(key) is not None]
