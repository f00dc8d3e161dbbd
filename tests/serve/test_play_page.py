"""The play page in a real browser, on a real server."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
import zlib
from typing import Any

import pytest
from browser import browser, needs_chromium, open_page
from world import Counter, Served, Slow, Two, serving, wait_until

from ludus import Action, Environment, Observation, State, ToolEnvironment, tool
from ludus.data.messages import Image, Text
from ludus.data.tool_schema import ToolSpec
from ludus.envs.wordle import Wordle
from ludus.protocol.types import CallToolAction, CallToolObservation

__all__ = ["browser"]
pytestmark = needs_chromium

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)><b>bold</b>"


def open_game(page: Any, served: Served, task: str = "{}") -> None:
    """Open the page and start a game by keyboard: the button has the focus."""
    page.goto(f"{served.url}/#task={task}")
    page.locator("button.start:focus").wait_for()
    page.keyboard.press("Enter")
    page.locator(".entry").first.wait_for()


def play(page: Any, typed: str) -> Any:
    """Type into the form that has the focus, and wait for the answer of the environment."""
    page.locator(".dock textarea:focus, .dock input:focus").wait_for()
    count = page.locator(".entry").count()
    page.keyboard.type(typed)
    page.keyboard.press("Enter")
    answer = page.locator(".entry").nth(count + 1)
    answer.wait_for()
    return answer


def alert(page: Any) -> str:
    page.get_by_role("alert").wait_for()
    return str(page.get_by_role("alert").inner_text())


def secret_word(seed: int) -> str:
    environment = Wordle()
    environment.reset(seed=seed)
    return environment.secret


def test_a_game_of_wordle_is_won_by_keyboard(browser: Any) -> None:
    with serving("wordle") as served, open_page(browser) as page:
        open_game(page, served, '{"seed":7}')
        assert "It has 5 letters" in page.locator(".entry").first.inner_text()
        assert "reward" not in play(page, "crane").inner_text()
        won = play(page, secret_word(7)).inner_text()
        assert "You found the word." in won and "reward 1" in won
        assert "total reward 1" in page.get_by_role("status").inner_text()
        # The next game is one key away.
        page.locator(".dock button:focus").wait_for()
        page.keyboard.press("Enter")
        page.locator(".dock textarea:focus").wait_for()
        assert page.locator(".entry").count() == 1


def rewards_of(page: Any) -> list[list[str]]:
    """Text and colours of each reward: of the steps in their order, and at last the total."""
    page.get_by_role("status").wait_for()
    badges = page.locator(".entry .badge, [role=status] .badge").filter(has_text="reward").all()
    return [[badge.inner_text(), *badge.get_attribute("class").split()[1:]] for badge in badges]


def test_a_lost_game_is_not_green(browser: Any) -> None:
    with serving("wordle") as served, open_page(browser) as page:
        open_game(page, served, '{"words":["crane"],"max_turns":1}')
        assert "The word was CRANE" in play(page, "crate").inner_text()
        assert rewards_of(page) == [["reward 0.32"], ["total reward 0.32"]]


class Steps(ToolEnvironment):
    """Each step has a reward of its own, and the last one says whether the task is solved."""

    def reset(
        self, *, seed: int | None = None, rewards: list[float], solved: float | None = None
    ) -> str:
        self.rewards = rewards
        self.parts = {} if solved is None else {"solved": solved}
        return "Go on."

    @tool
    def go(self) -> str:
        """Go on."""
        reward, *self.rewards = self.rewards
        if not self.rewards:
            return self.finish(reward, "There.", **self.parts)
        self.award(reward)
        return "Once more."


@pytest.mark.parametrize(
    ("task", "end"),
    [
        ({"rewards": [0.5, 0.25], "solved": 1.0}, ["good"]),
        ({"rewards": [0.5, 1.25], "solved": 0.0}, []),
        ({"rewards": [0.5, 0.25]}, []),
        ({"rewards": [0.5, 0.5]}, ["good"]),
        # Floating point makes this 0.9999999999999999.
        ({"rewards": [0.1] * 10}, ["good"]),
    ],
)
def test_only_the_end_of_a_solved_game_is_green(
    browser: Any, task: dict[str, Any], end: list[str]
) -> None:
    with serving(Steps) as served, open_page(browser) as page:
        open_game(page, served, json.dumps(task))
        for entries in range(1, 2 * len(task["rewards"]), 2):
            page.locator(".dock button", has_text="go").click()
            page.locator(".entry").nth(entries + 1).wait_for()
        *steps, last, total = [tones for _, *tones in rewards_of(page)]
        assert not any(steps) and last == total == end


def test_two_pages_do_not_see_each_others_game(browser: Any) -> None:
    with (
        serving("wordle") as served,
        open_page(browser) as one,
        open_page(browser) as other,
    ):
        open_game(one, served, '{"seed":1}')
        open_game(other, served, '{"seed":2}')
        play(one, "crane")
        assert len(served.sessions) == 2
        assert other.locator(".entry").count() == 1
        assert "You found the word." in play(other, secret_word(2)).inner_text()
        assert "Guesses left: 4" in play(one, "sloth").inner_text()
        assert "crane" not in other.locator("main").inner_text()


def test_a_page_that_is_closed_frees_its_session(browser: Any) -> None:
    with serving("wordle", max_sessions=1) as served:
        with open_page(browser) as page:
            page.goto(served.url)
            page.locator("button.start:focus").wait_for()
            assert len(served.sessions) == 0
            open_game(page, served)
            assert len(served.sessions) == 1
        wait_until(lambda: len(served.sessions) == 0)


def test_a_wrong_argument_shows_the_error_and_can_be_corrected(browser: Any) -> None:
    with serving(Counter) as served, open_page(browser) as page:
        open_game(page, served, '{"goal":5}')
        page.locator(".dock input:focus").wait_for()
        page.keyboard.type("many")
        page.keyboard.press("Enter")
        assert "'number'" in alert(page)
        assert page.locator(".dock input").input_value() == "many"
        page.locator(".dock input").fill("")
        assert "Only numbers above zero" in play(page, "-1").inner_text()
        assert "reward 1" in play(page, "5").inner_text()
        assert page.get_by_role("alert").count() == 0


def test_a_wrong_task_argument_shows_the_error(browser: Any) -> None:
    with serving(Counter) as served, open_page(browser) as page:
        page.goto(f'{served.url}/#task={{"goal":"high"}}')
        page.locator("button.start:focus").wait_for()
        page.keyboard.press("Enter")
        assert "goal" in alert(page)
        page.get_by_label("goal").fill("5")
        page.keyboard.press("Enter")
        page.locator(".entry").wait_for()
        assert "Reach 5." in page.locator(".entry").inner_text()


def test_tools_are_chosen_by_keyboard(browser: Any) -> None:
    with serving(Two) as served, open_page(browser) as page:
        open_game(page, served, '{"seed":3}')
        assert "doubled: 8" in play(page, "4").inner_text()
        page.keyboard.press("Escape")
        page.keyboard.press("2")
        page.get_by_label("word").wait_for()
        assert "bye" in play(page, "").inner_text()
        page.keyboard.press("s")
        page.get_by_text("step_count").wait_for()


class Toolbox(Environment[CallToolAction, CallToolObservation, State]):
    """Tools that only an instance knows."""

    def reset(self, *, seed: int | None = None, **named: str) -> str:
        self.named = named
        return "Use them."

    def list_tools(self) -> list[ToolSpec]:
        return [ToolSpec(name="use", description="Use them.")]

    def step(self, action: CallToolAction) -> CallToolObservation:
        return CallToolObservation(tool_name=action.tool_name, result=self.named, done=True)


def test_tools_of_the_session_and_any_task_arguments(browser: Any) -> None:
    with serving(Toolbox) as served, open_page(browser) as page:
        page.goto(served.url)
        page.locator("summary", has_text="Task arguments").click()
        others = page.get_by_label("other arguments")
        others.fill("[1]")
        page.keyboard.press("Enter")
        assert "JSON object" in alert(page)
        others.fill('{"hammer": "<b>"}')
        page.keyboard.press("Enter")
        page.get_by_role("button", name="use").click()
        page.get_by_text("hammer: <b>").wait_for()


class Mischief(ToolEnvironment):
    __doc__ = f"""Says {EVIL}

    Reward:
        `{EVIL}` is never paid.
    """

    def reset(self, *, seed: int | None = None, name: str = EVIL) -> str:
        return f"{EVIL} {name}"

    @tool
    def say(self, text: str) -> dict[str, str]:
        """Echo a text.

        Args:
            text: <script>alert(3)</script>
        """
        return {EVIL: f"{EVIL} {text}"}

    @property
    def state(self) -> State:
        return State.model_validate({"trick": EVIL})


def test_text_with_markup_runs_nothing(browser: Any) -> None:
    with serving(Mischief) as served, open_page(browser) as page:
        open_game(page, served)
        assert EVIL in page.locator(".entry").first.inner_text()
        assert EVIL in play(page, "<img src=y onerror=alert(4)>").inner_text()
        page.keyboard.press("Escape")
        page.keyboard.press("s")
        page.get_by_text("trick").wait_for()
        page.get_by_role("button", name="JSON").last.click()
        assert page.locator("#app script, #app b, #app img:not([alt=Ludus])").count() == 0
        policy = page.request.get(served.url).headers["content-security-policy"]
        assert "script-src 'self';" in policy and "default-src 'none'" in policy


def png(width: int, height: int) -> bytes:
    """A red image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\xff\0\0" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    )


class Look(Action):
    far: bool = False


class Sight(Observation):
    goal: str = ""
    screenshot: str = ""
    depth: list[int] = []  # noqa: RUF012 - pydantic copies it


class Camera(Environment[Look, Sight, State]):
    """Look at images."""

    def reset(self, *, seed: int | None = None) -> Sight:
        return Sight(goal="Look around.", screenshot=base64.b64encode(png(6, 4)).decode())

    def step(self, action: Look) -> Sight:
        return Sight(depth=[1, 2], done=True, reward=-0.5 if action.far else 0.5)


class Blocks(ToolEnvironment):
    """Observations of text and images."""

    def reset(self, *, seed: int | None = None) -> list[Text | Image]:
        return [Text(text="Before it."), Image.from_bytes(png(7, 5)), Text(text="After it.")]

    @tool
    def look(self) -> str:
        """Look again."""
        return self.finish(1.0, "Seen.")


def image_size(page: Any) -> tuple[int, int]:
    image = page.locator(".entry img")
    image.wait_for()
    return (
        image.evaluate("node => node.naturalWidth"),
        image.evaluate("node => node.naturalHeight"),
    )


def test_images_and_typed_observations_are_shown(browser: Any) -> None:
    with serving(Camera) as served, open_page(browser) as page:
        open_game(page, served)
        assert image_size(page) == (6, 4)
        assert "goal: Look around." in page.locator(".entry").first.inner_text()
        page.get_by_role("checkbox", name="far").check()
        page.keyboard.press("Enter")
        answer = page.locator(".entry").nth(2)
        answer.wait_for()
        assert "reward -0.5" in answer.inner_text() and "depth" in answer.inner_text()


def test_content_blocks_are_shown_and_a_tool_without_arguments_is_a_button(browser: Any) -> None:
    with serving(Blocks) as served, open_page(browser) as page:
        open_game(page, served)
        assert image_size(page) == (7, 5)
        text = page.locator(".entry").first.inner_text()
        assert "Before it." in text and "After it." in text
        page.locator(".dock button:focus").wait_for()
        page.keyboard.press("Enter")
        page.get_by_role("status").wait_for()
        assert "Seen." in page.locator(".entry").nth(2).inner_text()


def test_a_token_is_asked_for_and_sent_with_requests_and_sessions(browser: Any) -> None:
    secret = "geheim-ü/+=?"
    with serving("wordle", token=secret) as served, open_page(browser) as page:
        page.goto(served.url)
        page.get_by_label("Token").wait_for()
        assert "Find a secret word" not in page.content()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        assert "did not accept" in alert(page)
        page.get_by_label("Token").fill(secret)
        page.keyboard.press("Enter")
        page.locator("button.start").click()
        assert "Guesses left: 5" in play(page, "crane").inner_text()
        page.goto(f"{served.url}/docs")
        page.locator("summary", has_text="/schema").wait_for()


def test_the_game_as_python_code_plays_the_same_game(browser: Any) -> None:
    with serving("wordle", token="secret") as served:
        with open_page(browser) as page:
            page.goto(served.url)
            page.get_by_label("Token").fill("secret")
            page.keyboard.press("Enter")
            page.locator("button.start").wait_for()
            open_game(page, served, '{"seed":7,"words":["crane","sloth"]}')
            play(page, "shift")
            page.keyboard.press("Escape")
            page.keyboard.press("c")
            code = page.locator("pre.code").inner_text()
        environment = {**os.environ, "LUDUS_TOKEN": "secret"}
        command = [sys.executable, "-c", code]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "S H I F T" in ran.stdout, ran.stderr
    assert "secret" not in code


def test_a_full_server_and_a_dead_one_are_told_in_one_line(browser: Any) -> None:
    with open_page(browser) as page, open_page(browser) as late:
        with serving("wordle", max_sessions=1, queue_timeout=0.01) as served:
            open_game(page, served)
            late.goto(served.url)
            late.locator("button.start").click()
            assert "1 of 1" in alert(late) or "sessions" in alert(late)
        assert "game" in alert(page)
        page.get_by_role("button", name="Repeat").last.click()
        page.get_by_text("does not answer").wait_for()


def test_a_session_that_was_closed_is_told_and_another_one_is_opened(browser: Any) -> None:
    with serving(Slow, step_timeout=0.2) as served, open_page(browser) as page:
        open_game(page, served)
        page.locator(".dock input:focus").wait_for()
        page.keyboard.type("30")
        page.keyboard.press("Enter")
        assert "longer than 0.2 s" in alert(page)
        Slow.wake.set()
        page.get_by_role("button", name="New game").last.click()
        page.locator(".dock input:focus").wait_for()
        Slow.wake.clear()
        assert "Slept, 1 calls." in play(page, "0").inner_text()


def test_nothing_is_wider_than_the_screen(browser: Any) -> None:
    with serving("wordle") as served, open_page(browser) as page:
        page.set_viewport_size({"width": 320, "height": 600})
        page.goto(f"{served.url}/docs")
        page.locator("summary").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        open_game(page, served, '{"seed":7}')
        play(page, "x" * 200)
        for width in (320, 390, 1280):
            page.set_viewport_size({"width": width, "height": 600})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            box = page.locator(".dock").bounding_box()
            assert box["y"] + box["height"] <= 600


def test_the_api_page_works_offline_and_sends_requests(browser: Any) -> None:
    with serving(Counter) as served, open_page(browser) as page:
        page.goto(f"{served.url}/docs")
        page.locator("summary", has_text="/reset").click()
        form = page.locator("details", has=page.locator("summary", has_text="/reset"))
        form.get_by_label("Body").fill('{"goal": 9}')
        form.get_by_role("button", name="Send").click()
        form.get_by_role("status").wait_for()
        assert "200 OK" in form.get_by_role("status").inner_text()
        assert "Reach 9." in form.get_by_role("status").inner_text()
