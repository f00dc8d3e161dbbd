"""How a training goes so far: its pace, and the figures that are worth telling.

Values only: where they are shown, and how often, is `ludus.cli.display.train_display`'s business. This one is
of training on rows; `ludus.cli.display.grpo_progress` tells of trial and reward.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ludus.cli.display.formatting import format_count, format_estimate


class TrainMetrics:
    """What was logged so far, and how fast it comes."""

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
        """Keep the newest figures."""
        self.step = max(self.step, int(line.get("step") or 0))
        self._last_logged_at = time.monotonic()
        # A new one each time: a display draws from a thread of its own.
        self.latest = {**self.latest, **line}
        self._update_speed(line.get("tokens"))

    @property
    def seconds_left(self) -> float | None:
        """As the steps so far promise; what has passed since the last of them is taken off."""
        done = self.step - self._first_step
        if done <= 0:
            return None
        promised = (
            (self._last_logged_at - self._started_at) / done * max(0, self.total_steps - self.step)
        )
        return max(0.0, promised - (time.monotonic() - self._last_logged_at))

    def is_step_complete(self, line: Mapping[str, Any]) -> bool:
        """Whether with this line all is known of its step, so that it can be told."""
        return True

    def log_texts(self) -> list[str]:
        """How things stand, in a line."""
        return [*self.metric_texts(), *self.pace_texts()]

    def heading_texts(self) -> list[str]:
        """What stands beside the bar; the rows below it tell the rest."""
        return self.log_texts()

    def metric_texts(self) -> list[str]:
        """Of what is being learned."""
        return format_metrics(self.latest, _LOSS_FORMATS)

    def pace_texts(self) -> list[str]:
        left = self.seconds_left
        parts = (
            f"{format_count(self.tokens_per_second)} tokens/s" if self.tokens_per_second else "",
            f"{format_estimate(left)} left"
            if left is not None and self.step < self.total_steps
            else "",
        )
        return [part for part in parts if part]

    def rows(self, *, ascii_only: bool = False) -> list[tuple[str, str]]:
        """What a terminal has room for beside that: names and what is said of them."""
        return []

    def _update_speed(self, tokens: int | None) -> None:
        """Tokens a second, from the first logged line on: before it came the warm-up."""
        if tokens is None:
            return
        if self._first_tokens is None:
            self._first_tokens, self._first_tokens_at = tokens, self._last_logged_at
        elif (passed := self._last_logged_at - self._first_tokens_at) > 0:
            self.tokens_per_second = (tokens - self._first_tokens) / passed


_LOSS_FORMATS = {
    "loss": "loss {:.4f}",
    "eval_loss": "test loss {:.4f}",
    "learning_rate": "lr {:.2e}",
}


def format_metrics(line: Mapping[str, Any], forms: Mapping[str, str]) -> list[str]:
    """Those figures that are there, each as its form says it."""
    found = ((line.get(key), form) for key, form in forms.items())
    return [form.format(value) for value, form in found if value is not None]
