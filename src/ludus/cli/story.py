"""How a training goes so far: its pace, and the figures that are worth telling.

Values only: where they are shown, and how often, is `ludus.cli.training`'s business. This one is
of training on rows; `ludus.cli.grpo_display` tells of trial and reward.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ludus.cli.figures import approximate, count


class Story:
    """What was logged so far, and how fast it comes."""

    def __init__(self) -> None:
        self.total = self.step = self._first_step = 0
        self._since = self._last = time.monotonic()
        self._first_tokens: int | None = None
        self.speed: float | None = None
        self.newest: dict[str, Any] = {}

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        self.total = total_steps
        self.step = self._first_step = resumed_from or 0
        self._since = self._last = time.monotonic()

    def add(self, line: Mapping[str, Any]) -> None:
        """Keep the newest figures."""
        self.step = max(self.step, int(line.get("step") or 0))
        self._last = time.monotonic()
        # A new one each time: a display draws from a thread of its own.
        self.newest = {**self.newest, **line}
        self._measure(line.get("tokens"))

    @property
    def seconds_left(self) -> float | None:
        """As the steps so far promise; what has passed since the last of them is taken off."""
        done = self.step - self._first_step
        if done <= 0:
            return None
        promised = (self._last - self._since) / done * max(0, self.total - self.step)
        return max(0.0, promised - (time.monotonic() - self._last))

    def is_whole(self, line: Mapping[str, Any]) -> bool:
        """Whether with this line all is known of its step, so that it can be told."""
        return True

    def words(self) -> list[str]:
        """How things stand, in a line."""
        return [*self.figures(), *self.pace()]

    def heading(self) -> list[str]:
        """What stands beside the bar; the rows below it tell the rest."""
        return self.words()

    def figures(self) -> list[str]:
        """Of what is being learned."""
        return told(self.newest, _LOSSES)

    def pace(self) -> list[str]:
        left = self.seconds_left
        parts = (
            f"{count(self.speed)} tokens/s" if self.speed else "",
            f"{approximate(left)} left" if left is not None and self.step < self.total else "",
        )
        return [part for part in parts if part]

    def rows(self, *, ascii_only: bool = False) -> list[tuple[str, str]]:
        """What a terminal has room for beside that: names and what is said of them."""
        return []

    def _measure(self, tokens: int | None) -> None:
        """Tokens a second, from the first logged line on: before it came the warm-up."""
        if tokens is None:
            return
        if self._first_tokens is None:
            self._first_tokens, self._first_at = tokens, self._last
        elif (passed := self._last - self._first_at) > 0:
            self.speed = (tokens - self._first_tokens) / passed


_LOSSES = {"loss": "loss {:.4f}", "eval_loss": "test loss {:.4f}", "learning_rate": "lr {:.2e}"}


def told(line: Mapping[str, Any], forms: Mapping[str, str]) -> list[str]:
    """Those figures that are there, each as its form says it."""
    found = ((line.get(key), form) for key, form in forms.items())
    return [form.format(value) for value, form in found if value is not None]
