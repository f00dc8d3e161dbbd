"""Metrics and pace of a GRPO training, as texts; `train_display` shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ludus.cli.display.train_metrics import TrainMetrics, format_metrics
from ludus.data.sparkline import sparkline

if TYPE_CHECKING:
    from ludus.data.training_log import BucketMetrics

_GROUP_FORMATS = {
    "reward_std": "std {:.3f}",
    "zero_variance": "zero variance {:.0%}",
    "resampled": "resampled {:g}",
    "trained": "trained on {:.0%}",
    "reward_trained": "their reward {:.3f}",
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
    "sampled_nll": "nll {:.3f}",
    "grad_norm": "grad norm {:.3g}",
    "kl": "kl {:.3g}",
    "learning_rate": "lr {:.2e}",
}
_HELD_OUT_FORMATS = {"eval_reward": "reward {:.3f}", "eval_format": "format {:.0%}"}
_LOG_LINE_FORMATS = {
    "reward_std": "std {:.3f}",
    "zero_variance": "zero-variance groups {:.0%}",
    "length": "{:,.0f} tokens per episode",
    "turns": "{:.1f} turns",
    "cut_off": "cut off {:.0%}",
    "format": "format {:.0%}",
    "entropy": "entropy {:.3f}",
    "grad_norm": "grad norm {:.3g}",
    "time/rollout": "rollout {:.1f} s",
    "time/train": "training {:.1f} s",
    "eval_reward": "held-out reward {:.3f}",
}

_MAX_BUCKETS_SHOWN = 3


class GRPOMetrics(TrainMetrics):
    """GRPO metrics; `past_log` reads the log of a run that is resumed."""

    def __init__(self, past_log: Callable[[], Iterable[Mapping[str, Any]]] = tuple) -> None:
        super().__init__()
        self._past_log = past_log
        self._rewards: list[float] = []
        self._buckets: dict[str, BucketMetrics] = {}
        """Those of a curriculum that the last step drew."""

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        from ludus.data.training_log import metric_values

        super().begin(total_steps, resumed_from)
        if resumed_from is not None:
            lines = (line for line in self._past_log() if line.get("step", 0) <= resumed_from)
            self._rewards = metric_values(lines, "reward")

    def add(self, line: Mapping[str, Any]) -> None:
        from ludus.data.training_log import metric_values, read_buckets

        super().add(line)
        self._rewards += metric_values([line], "reward")
        self._buckets = read_buckets(line) or self._buckets

    def is_step_complete(self, line: Mapping[str, Any]) -> bool:
        """Held-out rewards of a step are logged right before its own metrics, which have a loss."""
        return "loss" in line or not self._rewards

    def metric_texts(self) -> list[str]:
        reward = [f"reward {' '.join(self._reward_change())}"] if self._rewards else []
        return [
            *reward,
            *self._reward_parts(),
            *(f"drawn {text}" for text in self._bucket_texts()[:1]),
            *format_metrics(self.latest, _LOG_LINE_FORMATS),
        ]

    def rows(self, *, ascii_only: bool = False) -> list[tuple[str, str]]:
        curve = "" if ascii_only else sparkline(self._rewards)
        rows = [
            ("reward", [*self._reward_change(), curve]),
            ("parts", self._reward_parts()),
            ("curriculum", self._bucket_texts()),
            ("groups", format_metrics(self.latest, _GROUP_FORMATS)),
            ("episodes", format_metrics(self.latest, _EPISODE_FORMATS)),
            ("policy", format_metrics(self.latest, _POLICY_FORMATS)),
            ("held out", format_metrics(self.latest, _HELD_OUT_FORMATS)),
            ("time", self._step_times()),
        ]
        return [(name, "  ".join(filter(None, texts))) for name, texts in rows if any(texts)]

    def heading_texts(self) -> list[str]:
        return self.pace_texts()

    def _reward_change(self) -> list[str]:
        """The latest reward, and its change since the first steps."""
        from ludus.data.training_log import first_and_last_means

        if not self._rewards:
            return []
        latest = f"{self._rewards[-1]:.3f}"
        if len(self._rewards) < 2 or (means := first_and_last_means(self._rewards)) is None:
            return [latest]
        return [latest, f"({means[1] - means[0]:+.3f} since the start)"]

    def _reward_parts(self) -> list[str]:
        """The mean reward of each environment or function, where there are several."""
        means = {
            key.removeprefix("rewards/").removesuffix("/mean"): value
            for key, value in self.latest.items()
            if key.startswith("rewards/") and key.endswith("/mean")
        }
        return [f"{name} {value:.3f}" for name, value in means.items()] if len(means) > 1 else []

    def _bucket_texts(self) -> list[str]:
        """The buckets that the last step drew most, with their success rates."""
        ranked = sorted(self._buckets.items(), key=lambda item: -item[1].groups)
        total = sum(bucket.groups for _, bucket in ranked)
        texts = []
        for label, bucket in ranked[:_MAX_BUCKETS_SHOWN]:
            success = "" if bucket.success is None else f" (success {bucket.success:.0%})"
            texts.append(f"{label} {bucket.groups / total:.0%}{success}")
        rest = len(ranked) - len(texts)
        return [*texts, *([f"{rest} more"] if rest else [])]

    def _step_times(self) -> list[str]:
        """Seconds of a step and its phases, and of one episode: episodes run concurrently."""
        step = format_metrics(self.latest, {"time/step": "{:.2f} s per step"})
        phases = format_metrics(
            self.latest, {"time/rollout": "rollout {:.2f} s", "time/train": "training {:.2f} s"}
        )
        episode = format_metrics(
            self.latest,
            {"time/model": "model {:.2f} s", "time/environment": "environment {:.2f} s"},
        )
        per_episode = [f"(per episode: {', '.join(episode)})"] if episode else []
        return [*step, *phases[:1], *per_episode, *phases[1:]]
