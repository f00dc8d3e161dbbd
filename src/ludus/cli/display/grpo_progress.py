"""What GRPO tells of itself while it runs: rewards above all, and where the time goes.

Values only, from the lines of the log; `ludus.cli.display.train_display` shows them. How to judge them is the
diagnosis's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ludus.cli.display.formatting import sparkline
from ludus.cli.display.sft_progress import TrainMetrics, format_metrics

REWARD_WINDOW_STEPS = 10
"""Steps whose mean is said at either end: what one step brings is mostly luck."""
_GROUP_FORMATS = {
    "reward_std": "std. dev. {:.3f}",
    "equal": "equal groups {:.0%}",
    "resampled": "drawn anew {:g}",
    "trained": "trained on {:.0%}",
    "reward_trained": "worth {:.3f}",
    "unscored": "unscored {:.0%}",
}
_EPISODE_FORMATS = {
    "length": "{:,.0f} tokens",
    "turns": "{:.1f} turns",
    "format": "format {:.0%}",
    "done": "done {:.0%}",
    "cut_off": "cut off {:.0%}",
}
_POLICY_FORMATS = {
    "entropy": "entropy {:.3f}",
    "surprise": "surprise {:.3f}",
    "grad_norm": "grad norm {:.3g}",
    "kl": "kl {:.3g}",
    "learning_rate": "lr {:.2e}",
}
_HELD_OUT_FORMATS = {"eval_reward": "reward {:.3f}", "eval_format": "format {:.0%}"}
_LOG_LINE_FORMATS = {
    "reward_std": "std. dev. {:.3f}",
    "equal": "equal groups {:.0%}",
    "length": "{:,.0f} tokens an episode",
    "turns": "{:.1f} turns",
    "cut_off": "cut off {:.0%}",
    "format": "format {:.0%}",
    "entropy": "entropy {:.3f}",
    "grad_norm": "grad norm {:.3g}",
    "time/rollout": "rollout {:.1f} s",
    "time/train": "training {:.1f} s",
    "eval_reward": "held-out reward {:.3f}",
}


class GRPOMetrics(TrainMetrics):
    """`past` gives what was logged before a run that goes on was stopped."""

    def __init__(self, past_log: Callable[[], Iterable[Mapping[str, Any]]] = tuple) -> None:
        super().__init__()
        self._past_log = past_log
        self._rewards: list[float] = []

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        super().begin(total_steps, resumed_from)
        if resumed_from is not None:
            before = (line for line in self._past_log() if line.get("step", 0) <= resumed_from)
            self._rewards = logged_rewards(before)

    def add(self, line: Mapping[str, Any]) -> None:
        super().add(line)
        self._rewards += logged_rewards([line])

    def is_step_complete(self, line: Mapping[str, Any]) -> bool:
        """Held-out tasks are tried before a step is logged; its own figures come right after."""
        return "loss" in line or not self._rewards

    def metric_texts(self) -> list[str]:
        """All of it, where there are no rows to put it in."""
        return [
            *self._reward_texts(),
            *self._reward_parts(),
            *format_metrics(self.latest, _LOG_LINE_FORMATS),
        ]

    def rows(self, *, ascii_only: bool = False) -> list[tuple[str, str]]:
        line = "" if ascii_only else sparkline(self._rewards)
        found = [
            ("reward", [*self._reward_change(), line]),
            ("parts", self._reward_parts()),
            ("groups", format_metrics(self.latest, _GROUP_FORMATS)),
            ("episodes", format_metrics(self.latest, _EPISODE_FORMATS)),
            ("policy", format_metrics(self.latest, _POLICY_FORMATS)),
            ("held out", format_metrics(self.latest, _HELD_OUT_FORMATS)),
            ("time", self._step_times()),
        ]
        return [(name, "  ".join(filter(None, said))) for name, said in found if any(said)]

    def heading_texts(self) -> list[str]:
        return self.pace_texts()

    def _reward_texts(self) -> list[str]:
        return [f"reward {' '.join(self._reward_change())}"] if self._rewards else []

    def _reward_change(self) -> list[str]:
        """The newest reward, and how far the last steps lie above the first ones."""
        if not self._rewards:
            return []
        now = f"{self._rewards[-1]:.3f}"
        ends = first_and_last_means(self._rewards)
        return [now] if ends is None else [now, f"({ends[1] - ends[0]:+.3f} since the start)"]

    def _reward_parts(self) -> list[str]:
        """Where rewards come from several environments or functions: each one's mean."""
        means = {
            key.removeprefix("rewards/").removesuffix("/mean"): value
            for key, value in self.latest.items()
            if key.startswith("rewards/") and key.endswith("/mean")
        }
        return [f"{name} {value:.3f}" for name, value in means.items()] if len(means) > 1 else []

    def _step_times(self) -> list[str]:
        """Of a step; and of one episode in it, since many are played at once."""
        step = format_metrics(self.latest, {"time/step": "{:.2f} s a step"})
        phases = format_metrics(
            self.latest, {"time/rollout": "rollout {:.2f} s", "time/train": "training {:.2f} s"}
        )
        waits = format_metrics(
            self.latest,
            {"time/model": "model {:.2f} s", "time/environment": "environment {:.2f} s"},
        )
        inside = [f"(of an episode: {', '.join(waits)})"] if waits else []
        return [*step, *phases[:1], *inside, *phases[1:]]


def logged_rewards(lines: Iterable[Mapping[str, Any]]) -> list[float]:
    """The steps' rewards, where something was scored."""
    found = (line.get("reward") for line in lines)
    return [reward for reward in found if reward is not None]


def first_and_last_means(rewards: Sequence[float]) -> tuple[float, float] | None:
    """The means of the first and of the last steps, which have none in common; None: too few."""
    width = min(REWARD_WINDOW_STEPS, len(rewards) // 2)
    return (fmean(rewards[:width]), fmean(rewards[-width:])) if width else None
