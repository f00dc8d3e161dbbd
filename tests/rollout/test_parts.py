"""Breaker, budget, watchdog and the pool of sessions, each by itself."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from world import Counter, serving

from ludus import connect
from ludus.client.endpoint import Endpoint
from ludus.client.session import Session, StepResult
from ludus.data.episode import Episode, Fault, StopReason, Usage
from ludus.errors import CapacityReached, ConnectFailed, SessionError
from ludus.rollout.activity import Activity
from ludus.rollout.breaker import Breaker
from ludus.rollout.budget import SCOUTS, Budget
from ludus.rollout.sessions import SessionPool
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


class FakeEndpoint(Endpoint):
    """Takes so many sessions, and is away when told so."""

    spec = "fake"

    def __init__(self, capacity: int = 100) -> None:
        self.capacity = capacity
        self.open = 0
        self.most = 0
        self.away = False

    def session(self) -> Session:
        return FakeSession(self)


class FakeSession(Session):
    def __init__(self, endpoint: FakeEndpoint) -> None:
        self._endpoint = endpoint
        self._taken = False

    async def open(self) -> None:
        await asyncio.sleep(0)
        if self._endpoint.away:
            raise ConnectFailed("Nobody answers.")
        if self._endpoint.open >= self._endpoint.capacity:
            raise CapacityReached("Full.")
        self._taken = True
        self._endpoint.open += 1
        self._endpoint.most = max(self._endpoint.most, self._endpoint.open)

    async def close(self) -> None:
        self._endpoint.open -= self._taken

    async def reset(self, **task: Any) -> StepResult[dict[str, Any]]:
        raise NotImplementedError

    async def step(self, action: Any) -> StepResult[dict[str, Any]]:
        raise NotImplementedError

    async def state(self) -> dict[str, Any]:
        return {}


async def test_sessions_are_used_again() -> None:
    endpoint = FakeEndpoint()
    pool = SessionPool(endpoint)
    for _ in range(5):
        pool.keep(await pool.take())
    assert endpoint.most == 1
    await pool.close()
    assert endpoint.open == 0


async def test_a_full_server_sets_the_number_of_sessions_and_nobody_fails() -> None:
    endpoint = FakeEndpoint(capacity=3)
    pool = SessionPool(endpoint)

    async def use() -> None:
        session = await pool.take()
        await asyncio.sleep(0.001)
        pool.keep(session)

    await asyncio.gather(*(use() for _ in range(40)))
    assert endpoint.most == 3


async def test_who_was_refused_beside_others_gets_a_session_when_there_is_one() -> None:
    endpoint = FakeEndpoint(capacity=0)
    pool = SessionPool(endpoint, patience=5)
    waiting = [asyncio.create_task(pool.take()) for _ in range(3)]
    await asyncio.sleep(0.05)
    endpoint.capacity = 3
    async with asyncio.timeout(2):
        await asyncio.gather(*waiting)


async def test_a_server_that_is_gone_is_waited_for() -> None:
    endpoint = FakeEndpoint()
    pool = SessionPool(endpoint, patience=5)
    await pool.drop(await pool.take())
    endpoint.away = True
    waiting = asyncio.create_task(pool.take())
    await asyncio.sleep(0.15)
    assert pool.waiting_since is not None
    endpoint.away = False
    await waiting
    assert pool.waiting_since is None


async def test_patience_has_an_end() -> None:
    endpoint = FakeEndpoint()
    pool = SessionPool(endpoint, patience=0.2)
    await pool.drop(await pool.take())
    endpoint.away = True
    with pytest.raises(SessionError):
        await pool.take()


async def test_a_real_server_with_one_place_serves_everybody_in_turn() -> None:
    with serving(Counter, max_sessions=1, queue_timeout=0.01) as served:
        pool = SessionPool(connect(served.url))

        async def use(number: int) -> str:
            session = await pool.take()
            result = await session.reset(goal=number)
            pool.keep(session)
            return str(result.content)

        seen = await asyncio.gather(*(use(number) for number in range(1, 9)))
        assert seen == [f"Reach {number}." for number in range(1, 9)]
        await pool.close()
