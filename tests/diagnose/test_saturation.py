"""Saturation, as `early_stop` detects it after each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from diagnose.runs import Sample, level, ramp
from ludus.diagnose.detectors import SATURATION_STEPS, SaturationDetector

DONE: dict[str, float] = {
    **{"reward": 0.98, "reward_std": 0.05, "zero_variance": 0.95, "grad_norm": 0.01, "entropy": 0.2}
}
BUSY: dict[str, float] = {
    **{"reward": 0.4, "reward_std": 0.45, "zero_variance": 0.1, "grad_norm": 0.5, "entropy": 0.4}
}


def log(*parts: tuple[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    lines = [line for count, line in parts for _ in range(count)]
    return [{"step": step, **line} for step, line in enumerate(lines, 1)]


def first_stop(lines: Iterable[Mapping[str, Any]]) -> tuple[int, str] | None:
    detector = SaturationDetector()
    for line in lines:
        if (why := detector.update(line)) is not None:
            return line["step"], why
    return None


def test_stops_when_a_whole_window_is_saturated() -> None:
    stop = first_stop(log((30, BUSY), (40, DONE)))
    assert stop is not None and stop[0] == 30 + SATURATION_STEPS
    for part in ("0.98", "20 steps", "95 %", "gradient"):
        assert part in stop[1]


@pytest.mark.parametrize(
    "change",
    [
        {"zero_variance": 0.85},
        {"reward": 0.84, "reward_std": 0.4},
        {"grad_norm": 0.4},
    ],
    ids=["groups that differ", "a reward that is not high", "a gradient that is there"],
)
def test_continues_while_a_criterion_is_not_met(change: dict[str, float]) -> None:
    assert first_stop(log((30, BUSY), (60, DONE | change))) is None


def test_continues_while_the_reward_rises() -> None:
    lines = log((30, BUSY), (40, DONE))
    for number, line in enumerate(lines[30:]):
        line["reward"] = 0.9 + number / 400
    assert first_stop(lines) is None


def test_unknown_scale_requires_a_rise() -> None:
    high = DONE | {"reward": 7.0, "reward_std": 0.2}
    low = BUSY | {"reward": -3.0, "reward_std": 2.0}
    assert first_stop(log((30, low), (40, high))) is not None
    assert first_stop(log((70, high | {"reward": -3.0}))) is None, "it has never risen"


def test_zero_reward_is_not_saturation() -> None:
    assert (
        first_stop(log((100, DONE | {"reward": 0.0, "reward_std": 0.0, "zero_variance": 1.0})))
        is None
    )


def test_perfect_run_stops_at_the_minimum() -> None:
    stop = first_stop(log((60, DONE | {"zero_variance": 1.0, "grad_norm": 0.0})))
    assert stop is not None and stop[0] == SATURATION_STEPS
    assert "hardly any group" in stop[1]


def test_fallen_reward_is_not_saturation() -> None:
    fallen = DONE | {"reward": 0.91}
    assert (
        first_stop(log((30, BUSY), (19, DONE | {"reward": 1.0}), (1, BUSY), (60, fallen))) is None
    )


def test_entries_without_rewards_are_ignored() -> None:
    detector = SaturationDetector()
    for line in log((30, BUSY), (19, DONE)):
        detector.update(line)
        assert detector.update({"step": line["step"], "eval_reward": 0.5}) is None
    assert detector.update({"step": 50, **DONE}) is not None


def test_reason_counts_steps_not_entries() -> None:
    lines = [line | {"step": 10 * line["step"]} for line in log((30, BUSY), (40, DONE))]
    stop = first_stop(lines)
    assert stop is not None and stop[0] == 500 and "for 191 steps" in stop[1]


@pytest.mark.parametrize("seed", range(5))
def test_learning_run_is_not_stopped(seed: int) -> None:
    assert first_stop(Sample(seed=seed).draw()[0]) is None
    assert first_stop(Sample({"w": level(0.85)}, seed=seed).draw()[0]) is None


@pytest.mark.parametrize("seed", range(5))
def test_saturated_run_is_stopped_soon(seed: int) -> None:
    curve = ramp((0.0, 0.3), (0.4, 0.995), (1.0, 0.995))
    stop = first_stop(Sample({"w": curve}, luck=0.01, seed=seed).draw()[0])
    assert stop is not None and 60 <= stop[0] <= 90
