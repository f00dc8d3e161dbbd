"""The browsergym environment, on a real browser: actions, pages, and the wire."""

from __future__ import annotations

import asyncio
import base64
import random
import struct
from collections.abc import Iterator

import pytest
from browser import needs_chromium
from world import serving

from envs.browser_play import call, only, open_environment
from ludus.client.session import LocalSession
from ludus.data.messages import Image
from ludus.environment.introspection import build_env_spec
from ludus.envs.browsergym import BrowserGym, BrowserGymAction, BrowserGymEnv

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def environment() -> Iterator[BrowserGym]:
    with open_environment() as environment:
        yield environment


AWKWARD = 'O\'Connor said "hi" \\ \\n {x} ${y} `z` <b>é漢🙂</b>'


def test_a_random_action_clicks_an_element_or_waits(environment: BrowserGym) -> None:
    environment.reset(seed=1, task_name="click-button", max_actions=5)
    random_call = environment.random_action(random.Random(0))
    assert random_call.name == "click"
    assert call(environment, "click", **random_call.arguments).error is None
    environment.elements = []
    assert environment.random_action(random.Random(0)).name == "noop"


def test_fill_selects_an_option_of_a_list(environment: BrowserGym) -> None:
    environment.reset(seed=3, task_name="choose-list")
    field = only(environment, "combobox")
    refused = call(environment, "fill", bid=field.bid, value="Atlantis")
    assert refused.error is not None and "no option 'Atlantis'" in refused.error.message
    country = environment.goal.removeprefix("Select ").partition(" from the list")[0]
    call(environment, "fill", bid=field.bid, value=country)
    assert call(environment, "click", bid=only(environment, "button").bid).reward == 1.0


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
    environment.reset(seed=1, task_name="click-dialog", max_actions=7)
    button = only(environment, "button").bid
    refused: list[tuple[str, dict[str, object], str]] = [
        ("click", {"bid": "9999"}, "9999"),
        ("click", {"bid": "x'] \"\n"}, "no element"),
        ("click", {"bid": "3"}, "hidden"),
        ("fill", {"bid": button, "value": "x"}, "not an <input>"),
        ("press", {"bid": button, "key_comb": "Nonsense"}, "Nonsense"),
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


def test_it_is_played_over_the_wire_with_action_strings() -> None:
    spec = build_env_spec(BrowserGym, name="browsergym")
    with serving(spec) as served, BrowserGymEnv(base_url=served.url).sync() as client:
        first = client.reset(task_name="click-test", seed=7)
        assert "[13] button" in first.observation.text
        assert "\n\t[13] button 'Click Me!'" in first.observation.axtree_txt
        wrong = client.step(BrowserGymAction(action_str="__import__('os').getpid()"))
        assert wrong.observation.last_action_error and not wrong.done
        assert (wrong.reward, wrong.observation.error) == (0.0, "")
        assert wrong.observation.text.startswith("Error: An action is one call")
        assert wrong.observation.axtree_txt == first.observation.axtree_txt
        result = client.step(BrowserGymAction(action_str="click('13')"))
        assert (result.reward, result.done) == (1.0, True)
        assert client.state().step_count == 2


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
        assert asyncio.run(play(served.url)) == [(0.0, False), (1.0, True)]


def test_a_page_that_does_not_exist_is_refused(environment: BrowserGym) -> None:
    with pytest.raises(ValueError, match="'click-test'"):
        environment.reset(task_name="click-tset")
