"""The oracles of browsergym, on a real browser."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from browser import needs_chromium

from envs.browser_play import call, open_environment, play_on, play_oracle
from ludus.envs.browsergym import BrowserGym
from ludus.envs.browsergym.page import ORACLES

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def environment() -> Iterator[BrowserGym]:
    with open_environment() as environment:
        yield environment


@pytest.mark.parametrize(
    ("task_name", "seed"),
    [
        ("click-button", 3),
        ("click-checkboxes", 3),
        ("login-user", 3),
        # The middle of one button lies below the other.
        ("click-test-2", 8),
    ],
)
def test_the_oracle_reaches_the_goal(environment: BrowserGym, task_name: str, seed: int) -> None:
    last = play_oracle(environment, task_name, seed)[-1]
    assert last.reward == 1.0 and last.metadata == {"rewards": {"raw": 1.0}}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("task_name", sorted(ORACLES))
def test_the_oracle_reaches_the_goal_on_every_seed(environment: BrowserGym, task_name: str) -> None:
    rewards = [play_oracle(environment, task_name, seed)[-1].reward for seed in range(20)]
    assert rewards == [1.0] * 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "task_name",
    [
        "click-checkboxes",
        "click-option",
        "enter-password",
    ],
)
def test_the_oracle_repairs_what_others_have_done(environment: BrowserGym, task_name: str) -> None:
    rng = random.Random(task_name)
    for seed in range(3):
        environment.reset(seed=seed, task_name=task_name)
        for _ in range(4):
            fields = {"checkbox", "radio", "spinbutton", "textbox"}
            field = rng.choice([each for each in environment.elements if each.role in fields])
            if field.role in ("checkbox", "radio"):
                call(environment, "click", bid=field.bid)
            else:
                call(environment, "fill", bid=field.bid, value=str(rng.randrange(-9, 99)))
        assert play_on(environment)[-1].reward == 1.0
