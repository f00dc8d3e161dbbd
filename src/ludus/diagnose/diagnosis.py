"""The diagnosis of a GRPO run: its numbers, and the verdicts on them, the most important first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from ludus.data.interval_estimates import MeanEstimate
from ludus.data.json_files import int_field, object_field
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import EPISODES_FILE, RECORD_FILE, LogEntry, metric_values, read_log
from ludus.diagnose.episode_stats import RunEpisodes, TokenLimits, read_episode_stats
from ludus.diagnose.reward_change import (
    RewardChange,
    component_changes,
    format_change_with_interval,
    reward_change,
)
from ludus.diagnose.rules import Verdict, apply_rules
from ludus.diagnose.step_log import BucketStats, StepLog, bucket_stats, metric_mean
from ludus.errors import RunError

WINDOW_METRICS = (
    *("reward_std", "zero_variance", "trained", "format", "done"),
    *("cut_off", "out_of_turns", "unscored"),
    *("length", "turns", "entropy", "sampled_nll", "grad_norm", "kl"),
)
"""Metrics that are compared between the first and the last window."""
STEP_PHASES = ("rollout", "model", "environment", "train", "step")
_NO_EPISODES = RunEpisodes()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Numbers and verdicts of a run."""

    steps: int
    window: int
    """Logged steps in the first and in the last window, which are compared."""
    mean_reward: MeanEstimate | None
    """Over the episodes of all steps; None: no episode was scored."""
    reward: RewardChange | None
    """From the first to the last window; None: no episode was scored."""
    parts: tuple[RewardChange, ...]
    """Reward change for each environment and each reward function; empty if there is only one."""
    metrics: Mapping[str, tuple[float, float]]
    seconds: Mapping[str, float]
    curve: tuple[float, ...]
    held_out: tuple[tuple[int, float], ...]
    curriculum: tuple[BucketStats, ...]
    verdicts: tuple[Verdict, ...]


def diagnose(
    entries: Iterable[LogEntry], episodes: RunEpisodes = _NO_EPISODES, *, completed_steps: int = 0
) -> Diagnosis:
    """Diagnose a run from its log and its episodes; it may still be running.

    `completed_steps` is the number of steps of a finished run, whose last ones may not be logged.
    """
    log = StepLog.from_entries(entries, completed_steps=completed_steps)
    if not log.entries:
        return Diagnosis(0, 0, None, None, (), {}, {}, (), log.held_out, (), ())
    buckets = bucket_stats(log.entries)
    change, components = reward_change(log, episodes), component_changes(log)
    windows = {
        key: (metric_mean(log.first_window, key), metric_mean(log.last_window, key))
        for key in WINDOW_METRICS
    }
    phases = {phase: metric_mean(log.entries, f"time/{phase}") for phase in STEP_PHASES}
    return Diagnosis(
        steps=log.steps,
        window=log.window_size,
        mean_reward=episodes.mean_reward,
        reward=change,
        parts=components,
        metrics={
            key: (first, last)
            for key, (first, last) in windows.items()
            if first is not None and last is not None
        },
        seconds={phase: seconds for phase, seconds in phases.items() if seconds is not None},
        curve=tuple(metric_values(log.entries, "reward")),
        held_out=log.held_out,
        curriculum=buckets,
        verdicts=tuple(apply_rules(log, episodes, change, components, buckets)),
    )


def format_diagnosis(diagnosis: Diagnosis) -> list[str]:
    """Return a line for the reward change and for each component, then one for each verdict."""
    changes = [diagnosis.reward, *diagnosis.parts] if diagnosis.reward else []
    return [
        *(f"{change.name}: {format_change_with_interval(change)}" for change in changes),
        *map(format_verdict, diagnosis.verdicts),
    ]


def format_verdict(verdict: Verdict) -> str:
    """Format a verdict as one line: its name, and finding and advice as sentences."""
    advice = verdict.advice[:1].upper() + verdict.advice[1:]
    return f"{verdict.name}: {verdict.finding}. {advice}."


@dataclass(frozen=True, slots=True)
class RunData:
    """The parts of a run folder that a diagnosis uses."""

    title: str
    planned_steps: int | None
    completed_steps: int | None
    """None: the run has not finished."""
    entries: tuple[LogEntry, ...]
    episodes: RunEpisodes
    note: str | None

    @property
    def finished(self) -> bool:
        return self.completed_steps is not None

    def diagnose(self) -> Diagnosis:
        return diagnose(self.entries, self.episodes, completed_steps=self.completed_steps or 0)


def read_run(folder: Path) -> RunData:
    """Read a GRPO run; raises `RunError` for any other folder, and before the first step."""
    file = folder / RECORD_FILE
    try:
        # Without its schema, which belongs to training.
        fields = from_json(file.read_bytes())
    except FileNotFoundError:
        what = (
            f"{folder} holds no training run" if folder.is_dir() else f"There is no folder {folder}"
        )
        raise RunError(
            f"{what}: no {RECORD_FILE}. Give the output folder of `ludus train grpo`."
        ) from None
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}.") from error
    record: JsonObject = fields if isinstance(fields, dict) else {}
    if (kind := record.get("kind")) != "grpo":
        raise RunError(
            f"{folder} holds a run of `ludus train {kind}`, which has no rewards to diagnose. Give "
            "the output folder of `ludus train grpo`."
        )
    entries = tuple(read_log(folder))
    if not any("reward" in entry or "unscored" in entry for entry in entries):
        raise RunError(
            f"No step of {folder} is logged yet. Wait for the first, or run `ludus train grpo` "
            "again to continue."
        )
    settings, limits = object_field(record, "settings"), TokenLimits()
    if settings.get("rollouts") != "trl":  # TRL also counts the tokens of observations.
        limits = TokenLimits(
            episode=int_field(settings, "max_episode_tokens"),
            reply=int_field(settings, "max_tokens"),
        )
    episodes = read_episode_stats(folder / EPISODES_FILE, limits=limits)
    environment = object_field(record, "environment").get("spec")
    completed_steps = None
    if record.get("metrics") is not None:  # Written when a run finishes.
        completed_steps = int_field(object_field(record, "metrics"), "steps") or 0
    return RunData(
        title=f"GRPO of {record.get('model')}" + (f" on {environment}" if environment else ""),
        planned_steps=int_field(settings, "steps"),
        completed_steps=completed_steps,
        entries=entries,
        episodes=episodes,
        note=None if episodes.groups else f"{EPISODES_FILE} has no scored episodes: no intervals.",
    )
