"""Breaker, budget and watchdog, each by itself."""

from __future__ import annotations

import time

from ludus.data.episode import Episode, Fault, StopReason, Usage
from ludus.rollout.activity import Activity
from ludus.rollout.breaker import Breaker
from ludus.rollout.budget import SCOUTS, Budget
from ludus.rollout.tally import Tally
from ludus.rollout.watchdog import Watchdog


def broken(number: int = 0, kind: str = "SessionLost") -> Episode:
    return Episode(
        episode_id=f"0badcafe-{number:06d}",
        stop_reason=StopReason.BROKEN,
        environment="counter",
        group_id="g",
        error=Fault(kind=kind, where="environment", message="the server is gone"),
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
    breaker = Breaker(limit=3)
    breaker.failed(broken(1))
    breaker.failed(broken(2))
    assert [episode.episode_id[-1] for episode in breaker.succeeded()] == ["1", "2"]
    breaker.failed(broken(3))
    assert breaker.why is None
    assert [episode.episode_id[-1] for episode in breaker.finished()] == ["3"]


def test_faults_in_a_row_end_the_run_and_record_nothing() -> None:
    breaker = Breaker(limit=3)
    for number in range(3):
        breaker.failed(broken(number))
    assert breaker.why == (
        "3 episodes in a row broke, the last with: SessionLost: the server is gone"
    )
    assert breaker.finished() == []


def test_a_row_of_faults_counts_when_all_that_was_under_way_has_ended() -> None:
    breaker = Breaker(limit=2)
    breaker.failed(broken(1), under_way=["slow"])
    breaker.failed(broken(2), under_way=["slow", "slower"])
    breaker.ended("slow")
    assert breaker.why is None
    breaker.ended("slower")
    assert breaker.why is not None


def test_after_ten_minutes_without_a_success_a_few_faults_are_enough() -> None:
    now = 0.0
    breaker = Breaker(clock=lambda: now)
    breaker.failed(broken(1))
    breaker.failed(broken(2))
    now = 601.0
    assert breaker.why is None
    breaker.failed(broken(3))
    assert breaker.why is not None


def test_a_refusal_that_meets_everybody_ends_the_run_at_once() -> None:
    breaker = Breaker()
    breaker.failed(broken(0, kind="ProviderRefuses"))
    assert breaker.why == "the server is gone"


def test_a_run_of_which_nothing_succeeded_is_not_recorded_as_broken() -> None:
    breaker = Breaker()
    breaker.failed(broken())
    assert breaker.finished() == []
    assert breaker.why is not None
    assert breaker.why.startswith("Not one episode could be played")


def spent(episodes: int, *, cost: float) -> Tally:
    tally = Tally(planned=1000, left=1000)
    for number in range(episodes):
        tally.attempted(good(number, cost))
        tally.add(good(number, cost))
    return tally


def test_a_budget_counts_what_is_under_way_as_if_it_were_spent() -> None:
    budget = Budget(max_cost=1.0)
    begun = Usage()
    assert budget.reached(spent(50, cost=0.01)) is None
    assert budget.reached(spent(50, cost=0.01), [begun] * 48) is None
    assert budget.reached(spent(50, cost=0.01), [begun] * 51) == "--max-cost $1 is used up"
    assert budget.reached(spent(50, cost=0.01), [Usage(cost=0.5)]) == "--max-cost $1 is used up"
    tokens = Budget(max_total_tokens=1000)
    assert tokens.reached(spent(9, cost=0.0)) is None
    assert tokens.reached(spent(10, cost=0.0)) == "--max-total-tokens 1,000 is used up"


def test_a_budget_counts_what_earlier_starts_have_spent_and_attempts_that_broke() -> None:
    tally = Tally(planned=10, left=10, spent_before=Usage(cost=0.6))
    tally.attempted(broken().model_copy(update={"usage": Usage(cost=0.4)}))
    assert Budget(max_cost=1.0).reached(tally) == "--max-cost $1 is used up"


def test_no_more_is_begun_than_is_known_of_the_price() -> None:
    assert Budget(max_cost=1.0).room(spent(0, cost=0.1)) == SCOUTS
    assert Budget(max_cost=1.0).room(spent(10, cost=0.1)) == SCOUTS + 10
    assert Budget(max_time=1.0).room(spent(0, cost=0.1)) == float("inf")


def test_the_watchdog_names_what_hangs_and_does_not_nag() -> None:
    said: list[str] = []
    slow = Activity("0badcafe-000001", words="the model's reply (turn 2)", side="model")
    slow.since = time.monotonic() - 70
    quick = Activity("0badcafe-000002")
    dog = Watchdog({"1": slow, "2": quick}, said.append, patience=60)
    dog.look()
    dog.look()
    assert said == ["0badcafe-000001 has waited 70 s for the model's reply (turn 2)."]
    slow.since -= 70
    dog.look()
    assert len(said) == 2


def test_the_watchdog_does_not_complain_of_a_model_that_asked_for_time() -> None:
    said: list[str] = []
    waiting = Activity("0badcafe-000001", words="the model's reply (turn 1)", side="model")
    waiting.since = time.monotonic() - 70
    Watchdog({"1": waiting}, said.append, patience=60, excused=lambda: True).look()
    assert said == []


def test_the_watchdog_names_an_environment_that_holds_up_everything() -> None:
    said: list[str] = []
    stuck = Activity("0badcafe-000001", environment="maze", words="the tool walk")
    with Watchdog({"1": stuck}, said.append, patience=0.1):
        time.sleep(0.4)
    assert said[0].startswith("Everything has stood still for 0 s: maze holds up the event loop")
    assert "blocking = True" in said[0]
