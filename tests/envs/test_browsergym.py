"""The browsergym environment, on a real browser."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from ludus_process import run_ludus
from world import serving

from ludus.client.local_session import LocalSession
from ludus.data.content import Image
from ludus.environment.introspection import build_env_spec
from ludus.envs.browsergym import BrowserGym, BrowserGymAction, BrowserGymEnv
from ludus.envs.browsergym.chromium import EXECUTABLE_VARIABLE, find_chromium
from ludus.envs.browsergym.oracles import ORACLES
from ludus.envs.browsergym.page_tree import Element
from ludus.envs.browsergym.workers import BrowserFailed, process_pool
from ludus.errors import ExecutionFailed
from ludus.protocol.types import CallToolAction, CallToolObservation, Observation

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")

AWKWARD = 'O\'Connor said "hi" \\ \\n {x} ${y} `z` <b>é漢🙂</b>'


@pytest.fixture(scope="module")
def environment() -> Iterator[BrowserGym]:
    environment = BrowserGym()
    yield environment
    worker = environment._worker
    environment.close()
    assert worker is not None and worker.alive
    process_pool().close()
    assert not worker.alive and not Path(worker._folder).exists()


def call(environment: BrowserGym, name: str, **arguments: object) -> CallToolObservation:
    seen = environment.step(CallToolAction(tool_name=name, arguments=arguments))
    assert isinstance(seen, CallToolObservation)
    return seen


def play_oracle(environment: BrowserGym, task_name: str, seed: int) -> list[Observation]:
    return [environment.reset(seed=seed, task_name=task_name), *play_on(environment)]


def play_on(environment: BrowserGym) -> list[Observation]:
    """Let the oracle play to the end, from the present page."""
    seen: list[Observation] = []
    while not seen or not seen[-1].done:
        action = environment.oracle()
        assert action is not None, (environment.task_name, environment.seed, environment.elements)
        seen.append(call(environment, action.name, **action.arguments))
    return seen


def only(environment: BrowserGym, role: str) -> Element:
    (element,) = (each for each in environment.elements if each.role == role)
    return element


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def browser_processes(environment: BrowserGym) -> list[psutil.Process]:
    assert environment._worker is not None
    below: list[psutil.Process] = psutil.Process(environment._worker.pid).children(recursive=True)
    return below


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
        "choose-list",
        "click-checkboxes",
        "click-option",
        "enter-password",
        "login-user-popup",
        "multi-orderings",
        "read-table-2",
        "use-spinner",
    ],
)
def test_the_oracle_repairs_what_others_have_done(environment: BrowserGym, task_name: str) -> None:
    rng = random.Random(task_name)
    for seed in range(3):
        environment.reset(seed=seed, task_name=task_name)
        for _ in range(4):
            fields = {"checkbox", "combobox", "radio", "spinbutton", "textbox"}
            field = rng.choice([each for each in environment.elements if each.role in fields])
            if field.role in ("checkbox", "radio"):
                call(environment, "click", bid=field.bid)
            elif field.role == "combobox":
                options = [each.name for each in environment.elements if each.role == "option"]
                call(environment, "fill", bid=field.bid, value=rng.choice(options))
            else:
                call(environment, "fill", bid=field.bid, value=str(rng.randrange(-9, 99)))
        assert play_on(environment)[-1].reward == 1.0


def test_a_random_action_clicks_an_element_or_waits(environment: BrowserGym) -> None:
    environment.reset(seed=1, task_name="click-button", max_actions=5)
    random_call = environment.random_action(random.Random(0))
    assert random_call.name == "click"
    assert call(environment, "click", **random_call.arguments).error is None
    environment.elements = []
    assert environment.random_action(random.Random(0)).name == "noop"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_episode_in_another_browser(environment: BrowserGym) -> None:
    other = BrowserGym()
    try:
        seen = []
        for each in (environment, other):
            first = each.reset(seed=5, task_name="stock-market", screenshot=True)
            seen.append([first, call(each, "noop"), call(each, "noop", wait_ms=5000)])
        assert seen[0] == seen[1]
        assert first != environment.reset(seed=6, task_name="stock-market", screenshot=True)
    finally:
        other.close()


def test_time_in_the_page_passes_only_with_actions(environment: BrowserGym) -> None:
    environment.reset(seed=5, task_name="stock-market")
    prices = [environment.elements]
    for _ in range(3):
        call(environment, "noop", wait_ms=0)
        prices.append(environment.elements)
    assert prices == prices[:1] * 4
    call(environment, "noop", wait_ms=10_000)
    assert environment.elements != prices[0]


@pytest.mark.parametrize(
    ("task_name", "text"), [("enter-text", AWKWARD), ("copy-paste", f"{AWKWARD}\n\nlast'line\\")]
)
def test_text_arrives_unchanged(environment: BrowserGym, task_name: str, text: str) -> None:
    environment.reset(seed=1, task_name=task_name)
    field = [each for each in environment.elements if each.role == "textbox"][-1]
    assert call(environment, "fill", bid=field.bid, value=text).error is None
    found = next(each for each in environment.elements if each.bid == field.bid)
    assert found.text == text
    environment.step(BrowserGymAction(action_str=f"fill({field.bid!r}, {text[::-1]!r})"))
    found = next(each for each in environment.elements if each.bid == field.bid)
    assert found.text == text[::-1]


def test_a_field_is_edited_with_keys(environment: BrowserGym) -> None:
    environment.reset(seed=1, task_name="enter-text")
    field = only(environment, "textbox")
    call(environment, "fill", bid=field.bid, value="a'b")
    call(environment, "press", bid=field.bid, key_comb="End")
    for key in ("'", "C", "Backspace", "Shift+KeyD"):
        assert call(environment, "press", bid=field.bid, key_comb=key).error is None
    assert only(environment, "textbox").text == "a'b'D"
    call(environment, "press", bid=field.bid, key_comb="Control+a")
    call(environment, "press", bid=field.bid, key_comb="x")
    assert only(environment, "textbox").text == "x"


def test_an_element_is_scrolled(environment: BrowserGym) -> None:
    environment.reset(seed=1, task_name="scroll-text-2")
    field, button = only(environment, "textbox"), only(environment, "button")
    up = "top" in environment.goal
    call(environment, "scroll", delta_x=0, delta_y=-9000 if up else 9000, bid=field.bid)
    assert call(environment, "click", bid=button.bid).reward == 1.0


def test_what_cannot_be_done_is_explained_and_counts(environment: BrowserGym) -> None:
    environment.reset(seed=1, task_name="click-dialog", max_actions=8)
    button = only(environment, "button").bid
    refused: list[tuple[str, dict[str, object], str]] = [
        ("click", {"bid": "9999"}, "9999"),
        ("click", {"bid": "x'] \"\n"}, "no element"),
        ("click", {"bid": "3"}, "hidden"),
        ("fill", {"bid": button, "value": "x"}, "not an <input>"),
        ("press", {"bid": button, "key_comb": "Nonsense"}, "Nonsense"),
        ("goto", {"url": "file:///etc/passwd"}, "no network"),
        ("noop", {"wait_ms": -1}, "between"),
    ]
    for name, arguments, reason in refused:
        seen = call(environment, name, **arguments)
        assert seen.error is not None and reason in seen.error.message, seen
        assert not seen.done
    last = call(environment, "click", bid=" [9999]")
    assert last.error is not None and (last.done, last.reward) == (True, 0.0)


def test_a_wrong_answer_is_worth_nothing(environment: BrowserGym) -> None:
    environment.reset(seed=1, task_name="enter-text")
    seen = call(environment, "click", bid=only(environment, "button").bid)
    assert (seen.done, seen.reward) == (True, 0.0)
    assert seen.metadata == {"rewards": {"raw": -1.0}}


@pytest.mark.parametrize("page", ["click-test", "enter-text"])
def test_leaving_or_reloading_the_page_ends_the_episode(environment: BrowserGym, page: str) -> None:
    environment.reset(seed=1, task_name="click-test")
    seen = call(environment, "goto", url=f"http://miniwob.test/miniwob/{page}.html")
    assert (seen.error, seen.done, seen.reward) == (None, True, 0.0)


def test_the_screenshot_is_an_image_block() -> None:
    async def play() -> tuple[object, object]:
        session = LocalSession(build_env_spec(BrowserGym, name="browsergym"))
        async with session:
            first = await session.reset(seed=1, task_name="click-test", screenshot=True)
            return first.content, (await session.call("noop", {})).content

    for content in asyncio.run(play()):
        assert isinstance(content, list)
        (image,) = (block for block in content if isinstance(block, Image))
        png = base64.b64decode(image.data)
        assert png.startswith(b"\x89PNG")
        assert struct.unpack(">II", png[16:24]) == (332, 214)


def test_a_hung_browser_breaks_only_its_own_episode(environment: BrowserGym) -> None:
    environment.reset(seed=1, task_name="click-test")
    hung = BrowserGym(action_timeout=1.0)
    hung.reset(seed=1, task_name="click-test")
    processes = browser_processes(hung)
    for process in processes:
        process.suspend()
    with pytest.raises(BrowserFailed, match="did not answer"):
        hung.click("13")
    with pytest.raises(BrowserFailed):
        hung.click("13")
    assert all(is_gone(process.pid) for process in processes)
    assert call(environment, "click", bid=only(environment, "button").bid).reward == 1.0
    # A retry gets another browser.
    hung._action_timeout = 60.0
    assert play_oracle(hung, "click-test", seed=1)[-1].reward == 1.0
    hung.close()


@pytest.mark.slow
def test_a_crashed_browser_is_a_fault_and_no_reward() -> None:
    async def play() -> float | None:
        session = LocalSession(build_env_spec(BrowserGym, name="browsergym"))
        async with session:
            await session.reset(seed=1, task_name="click-test")
            for process in browser_processes(session.runner.environment):
                if "chrom" in process.name():
                    process.kill()
            with pytest.raises(ExecutionFailed, match="browser"):
                await session.call("click", {"bid": "13"})
            await session.reset(seed=1, task_name="click-test")
            return (await session.call("click", {"bid": "13"})).reward

    assert asyncio.run(play()) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "then",
    [
        pytest.param("sys.stdin.read()", id="idle", marks=pytest.mark.slow),
        pytest.param("while True: environment.noop()", id="busy"),
    ],
)
def test_nothing_is_left_behind_when_the_parent_is_killed(then: str) -> None:
    program = (
        "import sys\n"
        "from ludus.envs.browsergym import BrowserGym\n"
        "environment = BrowserGym()\n"
        "environment.reset(seed=1, max_actions=10**6)\n"
        "print(environment._worker.pid, environment._worker._folder, flush=True)\n"
        f"{then}\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        worker = psutil.Process(int(pid))
        pids = [worker.pid, *(each.pid for each in worker.children(recursive=True))]
        assert len(pids) > 3 and Path(folder).is_dir()
        time.sleep(0.5)  # Any moment will do; the busy one is in the middle of a request.
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, pids)) and not Path(folder).exists())


def test_an_idle_browser_is_used_again() -> None:
    chromium = find_chromium()
    worker = process_pool().acquire(chromium)
    process_pool().release(worker)
    assert process_pool().acquire(chromium) is worker
    process_pool().release(worker)


def test_it_is_played_over_the_wire_with_action_strings() -> None:
    spec = build_env_spec(BrowserGym, name="browsergym")
    with serving(spec) as served, BrowserGymEnv(base_url=served.url).sync() as client:
        first = client.reset(task_name="click-test", seed=7)
        assert "[13] button" in first.observation.text
        assert first.observation.axtree_txt == first.observation.text
        wrong = client.step(BrowserGymAction(action_str="__import__('os').getpid()"))
        assert wrong.observation.last_action_error and not wrong.done
        result = client.step(BrowserGymAction(action_str="click('13')"))
        assert (result.reward, result.done) == (1.0, True)
        assert client.state().step_count == 1


@pytest.mark.slow
def test_it_is_played_by_openenvs_own_client() -> None:
    from openenv.core.generic_client import GenericEnvClient

    async def play(url: str) -> list[tuple[float | None, bool]]:
        async with GenericEnvClient(base_url=url) as client:
            await client.reset(task_name="enter-text", seed=3)
            actions = ("fill('14', \"Cheree\")", "click('15')")
            results = [await client.step({"action_str": action}) for action in actions]
            return [(result.reward, result.done) for result in results]

    with serving(build_env_spec(BrowserGym, name="browsergym")) as served:
        assert asyncio.run(play(served.url)) == [(None, False), (1.0, True)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_sessions_play_at_once() -> None:
    async def play(number: int) -> list[float | None]:
        rewards: list[float | None] = []
        async with LocalSession(build_env_spec(BrowserGym, name="browsergym")) as session:
            for seed in range(5):
                result = await session.reset(seed=seed, task_name="click-checkboxes")
                while not result.done:
                    action = await session.runner.call_method("oracle")
                    result = await session.call(action.name, action.arguments)
                rewards.append(result.reward)
        return rewards

    async def play_all() -> list[list[float | None]]:
        return await asyncio.gather(*map(play, range(4)))

    assert asyncio.run(play_all()) == [[1.0] * 5] * 4
    process_pool().close()


def test_a_page_that_does_not_exist_is_refused(environment: BrowserGym) -> None:
    with pytest.raises(ValueError, match="'click-test'"):
        environment.reset(task_name="click-tset")


@pytest.mark.parametrize("arguments", [("serve", "--port", "0"), ("check",)])
def test_a_browser_that_does_not_exist_is_refused_in_words(arguments: tuple[str, ...]) -> None:
    spec = "ludus.envs.browsergym:BrowserGym"
    done = run_ludus(arguments[0], spec, *arguments[1:], env={EXECUTABLE_VARIABLE: "/nowhere/x"})
    printed = done.stdout + done.stderr
    assert done.returncode == 1 and "'/nowhere/x'" in printed and EXECUTABLE_VARIABLE in printed
    assert "chromium.py" not in printed and "BrowserMissing" not in printed
