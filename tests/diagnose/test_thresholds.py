"""Exact thresholds of the verdicts, with logs whose metrics are constant."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.diagnose import diagnose

CONSTANT_ENTRY: dict[str, Any] = {
    "reward": 0.5,
    "reward_std": 0.3,
    "zero_variance": 0.2,
    "trained": 0.8,
    "format": 1.0,
    "cut_off": 0.0,
    "out_of_turns": 0.0,
    "unscored": 0.0,
    "entropy": 0.4,
    "grad_norm": 0.3,
    "loss": 0.01,
}


def verdicts(**figures: float) -> list[str]:
    log = [{"step": step, **CONSTANT_ENTRY, **figures} for step in range(1, 41)]
    return [verdict.name for verdict in diagnose(log).verdicts]


@pytest.mark.parametrize(
    ("figures", "name"),
    [
        ({"reward": 0.9}, "too easy"),
        ({"reward": 0.2, "zero_variance": 0.5}, "too hard"),
        ({"reward": 0.2, "format": 0.5}, "format is the bottleneck"),
        ({"zero_variance": 0.6}, "dead groups"),
        ({"cut_off": 0.2}, "cut off"),
        ({"out_of_turns": 0.2}, "out of turns"),
        ({"unscored": 0.02}, "unscored episodes"),
        ({"entropy": 0.02}, "low entropy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_verdict_applies_at_its_threshold_and_not_below(
    figures: dict[str, float], name: str
) -> None:
    assert name in verdicts(**figures)
    for key, value in figures.items():
        short = value + (0.01 if key in ("format", "entropy") else -0.01)
        if key == "reward" and name != "too easy":
            short = value + 0.01
        assert name not in verdicts(**{**figures, key: short}), key


def test_constant_log_has_no_progress() -> None:
    assert verdicts() == ["no progress"]


@pytest.mark.parametrize(("gain", "learned"), [(0.09, False), (0.11, True)])
def test_uncertain_gain_must_be_large(gain: float, learned: bool) -> None:
    log = [{"step": step, **CONSTANT_ENTRY} for step in range(1, 41)]
    for line in log[20:]:
        line["reward"] += gain
    (found_verdicts,) = diagnose(log).verdicts
    assert (found_verdicts.name == "learned") is learned


@pytest.mark.parametrize(("loss", "fallen"), [(0.04, False), (0.06, True)])
def test_small_fall_is_ignored(loss: float, fallen: bool) -> None:
    rewards = [0.3] * 10 + [0.8] * 20 + [0.8 - loss] * 10
    log = [
        {"step": step, **CONSTANT_ENTRY, "reward": reward} for step, reward in enumerate(rewards, 1)
    ]
    names = [verdict.name for verdict in diagnose(log).verdicts]
    assert ("past saturation" in names) is fallen and "learned" in names
