"""Estimates of the time left, on a clock that the test turns."""

from __future__ import annotations

import pytest

from ludus.rollout.loop import EpisodeLimits
from ludus.rollout.progress import DecodeProgress, PhaseProgress, RolloutProgress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_done_promises_the_rest() -> None:
    clock = Clock()
    progress = PhaseProgress("Measuring", 10, "rows", token_count=0, clock=clock)
    assert progress.seconds_left is progress.tokens_per_second is None
    clock.now = 4.0
    progress.advance(2, tokens=100)
    assert [progress.seconds_left, progress.tokens_per_second] == [16.0, 25.0]
    clock.now = 7.0
    assert progress.seconds_left == 13.0, "what has passed since is taken off"


def test_the_speed_is_that_of_the_last_seconds() -> None:
    clock, sampled = Clock(), [100]
    meter = DecodeProgress(lambda: sampled[0], clock)
    assert (meter.tokens, meter.tokens_per_second) == (0, None), "earlier tokens do not count"
    for clock.now, sampled[0] in ((1.0, 110), (5.0, 150), (20.0, 300), (30.0, 310)):
        rate = meter.tokens_per_second
    assert rate == 1.0 and meter.tokens == 210


def test_an_agent_without_a_local_model_has_no_tokens() -> None:
    meter = DecodeProgress(lambda: None)
    assert meter.tokens is None and meter.tokens_per_second is None


@pytest.mark.parametrize(
    ("limits", "known", "left"),
    [
        # Nothing has finished: all is taken to use its budget.
        (EpisodeLimits(max_episode_tokens=100), (40, 6, 4, 0, 0), 6 * 100 + 4 * 90),
        (EpisodeLimits(max_tokens=50), (40, 6, 4, 0, 0), 6 * 50 + 4 * 40),
        # Some have: all tokens over the finished ones.
        (EpisodeLimits(max_episode_tokens=100), (100, 6, 4, 5, 60), 6 * 20 + 4 * 20),
        # The first one that has finished is short, and no reason to take all for as short.
        (EpisodeLimits(max_episode_tokens=100), (40, 6, 4, 1, 4), 6 * 40 + 4 * 40),
        # More turns than anybody knew.
        (EpisodeLimits(max_tokens=50), (480, 0, 4, 0, 0), 4 * 25),
        (EpisodeLimits(max_episode_tokens=100), (1000, 0, 0, 10, 1000), 0),
    ],
)
def test_tokens_that_are_left_are_estimated(
    limits: EpisodeLimits, known: tuple[int, int, int, int, int], left: float
) -> None:
    sampled, waiting, active, finished, finished_tokens = known
    counts = iter([0, sampled])
    estimate = DecodeProgress(lambda: next(counts)).tokens_left(
        limits, waiting=waiting, active=active, finished=finished, finished_tokens=finished_tokens
    )
    assert estimate == left


def test_an_estimate_is_there_before_any_episode_has_finished() -> None:
    clock, sampled = Clock(), 0
    playing = RolloutProgress(
        "Playing", 4, limits=EpisodeLimits(max_tokens=50), count_tokens=lambda: sampled, clock=clock
    )
    assert playing.seconds_left is None
    clock.now, sampled = 2.0, 40
    assert (playing.tokens, playing.tokens_per_second) == (40, 20.0)
    assert playing.seconds_left == 8.0, "of 200 tokens 160 are left"
    clock.now, sampled = 4.0, 80
    playing.finish_episode(20)
    assert playing.done == 1 and playing.seconds_left == pytest.approx(3 * 30 / 20)
