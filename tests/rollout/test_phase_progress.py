"""Estimates of the time left, on a clock that the test turns."""

from __future__ import annotations

from ludus.rollout.progress import PhaseProgress


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


def test_the_speed_of_a_local_model_is_counted_from_the_beginning_of_the_phase() -> None:
    clock, sampled = Clock(), [100]
    progress = PhaseProgress("Playing", 4, count_tokens=lambda: sampled[0], clock=clock)
    assert (progress.tokens, progress.tokens_per_second) == (0, None), "earlier ones do not count"
    clock.now, sampled[0] = 2.0, 140
    assert (progress.tokens, progress.tokens_per_second) == (40, 20.0)


def test_an_agent_without_a_local_model_has_no_tokens() -> None:
    progress = PhaseProgress("Playing", count_tokens=lambda: None)
    assert progress.tokens is None and progress.tokens_per_second is None
