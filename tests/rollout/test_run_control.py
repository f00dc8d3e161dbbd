"""Breaker, budget and watchdog, each by itself."""

from __future__ import annotations

import time
from queue import SimpleQueue

from ludus.data.episode import Episode, EpisodeFault, StopReason, Usage
from ludus.rollout.circuit_breaker import CircuitBreaker
from ludus.rollout.progress import EpisodeProgress, Watchdog
from ludus.rollout.stats import INITIAL_CONCURRENCY, RunBudget, RunStats


def broken(number: int = 0, kind: str = "SessionLost") -> Episode:
    return Episode(
        episode_id=f"0badcafe-{number:06d}",
        stop_reason=StopReason.BROKEN,
        environment="counter",
        group_id="g",
        error=EpisodeFault(kind=kind, where="environment", message="the server is gone"),
    )


def good(number: int, cost: float | None = None) -> Episode:
    return Episode(
        episode_id=f"0badcafe-{number:06d}",
        stop_reason=StopReason.DONE,
        reward=1.0,
        usage=Usage(prompt_tokens=90, completion_tokens=10, cost=cost),
        environment="counter",
        group_id="g",
    )


def test_a_broken_episode_is_recorded_once_another_one_succeeds() -> None:
    breaker = CircuitBreaker(limit=3)
    breaker.record_fault(broken(1))
    breaker.record_fault(broken(2))
    assert [episode.episode_id[-1] for episode in breaker.record_success()] == ["1", "2"]
    breaker.record_fault(broken(3))
    assert breaker.reason is None
    assert [episode.episode_id[-1] for episode in breaker.finish()] == ["3"]


def test_faults_in_a_row_end_the_run_and_record_nothing() -> None:
    breaker = CircuitBreaker(limit=3)
    for number in range(3):
        breaker.record_fault(broken(number))
    assert breaker.reason is not None
    assert breaker.reason.startswith("3 episodes ") and "SessionLost: " in breaker.reason
    assert breaker.finish() == []


def test_a_row_of_faults_counts_when_all_that_was_under_way_has_ended() -> None:
    breaker = CircuitBreaker(limit=2)
    breaker.record_fault(broken(1), active=["slow"])
    breaker.record_fault(broken(2), active=["slow", "slower"])
    breaker.record_end("slow")
    assert breaker.reason is None
    breaker.record_end("slower")
    assert breaker.reason is not None


def test_a_refusal_that_meets_everybody_ends_the_run_at_once() -> None:
    breaker = CircuitBreaker()
    breaker.record_fault(broken(0, kind="ProviderRefuses"))
    assert breaker.reason == "the server is gone"


def test_a_run_of_which_nothing_succeeded_is_not_recorded_as_broken() -> None:
    breaker = CircuitBreaker()
    breaker.record_fault(broken())
    assert breaker.finish() == []
    assert breaker.reason is not None
    assert "SessionLost: " in breaker.reason


def spent(episodes: int, *, cost: float) -> RunStats:
    stats = RunStats(planned=1000, remaining=1000)
    for number in range(episodes):
        stats.record_attempt(good(number, cost))
        stats.add(good(number, cost))
    return stats


def test_a_budget_counts_what_is_under_way_as_if_it_were_spent() -> None:
    budget = RunBudget(max_cost=1.0)
    begun = Usage()
    assert budget.exhausted_reason(spent(50, cost=0.01)) is None
    assert budget.exhausted_reason(spent(50, cost=0.01), [begun] * 48) is None
    assert "$1" in (budget.exhausted_reason(spent(50, cost=0.01), [begun] * 51) or "")
    assert "$1" in (budget.exhausted_reason(spent(50, cost=0.01), [Usage(cost=0.5)]) or "")
    tokens = RunBudget(max_total_tokens=1000)
    assert tokens.exhausted_reason(spent(9, cost=0.0)) is None
    assert "1,000" in (tokens.exhausted_reason(spent(10, cost=0.0)) or "")


def test_a_budget_counts_what_earlier_starts_have_spent_and_attempts_that_broke() -> None:
    stats = RunStats(planned=10, remaining=10, usage_before=Usage(cost=0.6))
    stats.record_attempt(broken().model_copy(update={"usage": Usage(cost=0.4)}))
    assert RunBudget(max_cost=1.0).exhausted_reason(stats) is not None


def test_no_more_is_begun_than_is_known_of_the_price() -> None:
    assert RunBudget(max_cost=1.0).max_active(spent(0, cost=0.1)) == INITIAL_CONCURRENCY
    assert RunBudget(max_cost=1.0).max_active(spent(10, cost=0.1)) == INITIAL_CONCURRENCY + 10
    assert RunBudget(max_time=1.0).max_active(spent(0, cost=0.1)) == float("inf")


def test_the_watchdog_names_what_hangs_and_does_not_nag() -> None:
    said: list[str] = []
    slow = EpisodeProgress("0badcafe-000001", activity="the model's reply (turn 2)", side="model")
    slow.since = time.monotonic() - 70
    quick = EpisodeProgress("0badcafe-000002")
    dog = Watchdog({"1": slow, "2": quick}, said.append, timeout=60)
    dog.check()
    dog.check()
    (warning,) = said
    assert "0badcafe-000001" in warning and "70 s" in warning and "reply (turn 2)" in warning
    slow.since -= 70
    dog.check()
    assert len(said) == 2


def test_the_watchdog_does_not_complain_of_a_model_that_asked_for_time() -> None:
    said: list[str] = []
    waiting = EpisodeProgress(
        "0badcafe-000001", activity="the model's reply (turn 1)", side="model"
    )
    waiting.since = time.monotonic() - 70
    Watchdog({"1": waiting}, said.append, timeout=60, model_excused=lambda: True).check()
    assert said == []


def test_the_watchdog_names_an_environment_that_blocks_the_event_loop() -> None:
    warnings: SimpleQueue[str] = SimpleQueue()
    stuck = EpisodeProgress("0badcafe-000001", environment="maze", activity="the tool walk")
    with Watchdog({"1": stuck}, warnings.put, timeout=0.1):
        warning = warnings.get(timeout=30)
    assert "maze" in warning and "the tool walk" in warning and "blocking = True" in warning
