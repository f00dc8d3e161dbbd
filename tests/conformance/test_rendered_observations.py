"""What a model is shown of the observations of well-known environments, on OpenEnv's own server
and in this process alike."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from PIL import Image as Pictures

from conformance import observation_environments as worlds
from conformance.test_ludus_client_on_openenv_server import their_server
from ludus import Session, ToolCall, connect
from ludus.agents.scripted import ScriptedAgent
from ludus.data.messages import Content, Image, Text
from ludus.rollout import Assignment, run_episode

Opener = Callable[[str], AbstractAsyncContextManager[Session]]


@pytest.fixture(params=["in process", "over a socket"])
def open_session(request: pytest.FixtureRequest) -> Opener:
    """Opens a session on one of the worlds by the beginning of its classes' names."""

    @asynccontextmanager
    async def opened(name: str) -> AsyncIterator[Session]:
        cls = getattr(worlds, f"{'Sudoku' if name == 'TextArena' else name}Environment")
        if request.param == "in process":
            async with connect(f"{worlds.__name__}:{cls.__name__}").session() as session:
                yield session
            return
        types = (getattr(worlds, f"{name}{kind}") for kind in ("Action", "Observation"))
        with their_server(cls, *types) as url:
            async with connect(url).session() as session:
                yield session

    return opened


def picture(content: Content) -> Pictures.Image:
    (image,) = [block for block in content if isinstance(block, Image)]
    return Pictures.open(io.BytesIO(base64.b64decode(image.data)))


def words(content: Content) -> str:
    assert not isinstance(content, str)
    (text,) = [block.text for block in content if isinstance(block, Text)]
    return text


async def test_textarena_shows_the_rules_the_board_and_then_only_what_is_new(
    open_session: Opener,
) -> None:
    async with open_session("TextArena") as session:
        agent = ScriptedAgent(
            ToolCall(name="message", arguments={"message": "[1 1 2]"}),
            ToolCall(name="message", arguments={"message": "[2 2 1]"}),
        )
        episode = await run_episode(session, agent, Assignment("e", "sudoku", {"seed": 1}, 1))
        shown = [message.content for message in episode.messages if message.role != "assistant"]
        board = worlds.BOARD
        assert shown[1:] == [
            f"[GAME] {worlds.RULES}\n[GAME] {board.format('.')}",
            "[Player 0] [1 1 2]\n[GAME] Invalid move.",
            f"[Player 0] [2 2 1]\n[GAME] {board.format('1')}",
        ]
        again = await session.reset(seed=1)
        assert again.content == shown[1]


async def test_browsergym_shows_goal_page_and_screenshot(open_session: Opener) -> None:
    async with open_session("BrowserGym") as session:
        first = await session.reset(seed=1)
        assert words(first.content) == (
            "goal: Click the button.\n\n"
            "RootWebArea 'Click Test', focused\n\t[13] button 'OK'\n\n"
            "url: http://localhost:8888/miniwob/click-test.html\n"
            'pruned_html: <button bid="13">OK</button>'
        )
        screenshot = picture(first.content)
        assert (screenshot.size, screenshot.getpixel((3, 3))) == ((16, 12), (255, 0, 0))
        wrong = await session.call("action_str", {"action_str": "clik(13)"})
        assert wrong.content == (
            "goal: Click the button.\n"
            "error: ValueError: clik(13) is no action\n"
            "url: http://localhost:8888/miniwob/click-test.html"
        )


async def test_openspiel_shows_the_board_of_catch_as_rows(open_session: Opener) -> None:
    async with open_session("OpenSpiel") as session:
        first = await session.reset(seed=1)
        rows = ["0 0 0 1 0", *["0 0 0 0 0"] * 8, "0 0 1 0 0"]
        assert str(first.content).splitlines() == [
            "info_state:",
            *rows,
            "",
            "legal_actions: [0, 1, 2]",
            "game_phase: initial",
            "current_player_id: 0",
        ]
        last = await session.call("open_spiel", {"action_id": 1})
        assert str(last.content).splitlines()[0] == "info_state: [0.25, 1]"


async def test_carla_shows_the_scene_the_car_and_the_photograph(open_session: Opener) -> None:
    async with open_session("Carla") as session:
        first = await session.reset(seed=1)
        assert first.content == (
            "You drive at 40 km/h.\nA pedestrian is 20 m ahead.\n\n"
            "speed_kmh: 40.0\n"
            "location: [1, 2, 0.5]\n"
            "current_lane: lane_0\n"
            'nearby_actors: {"type": "pedestrian", "distance": 20.0}\n'
            "collision_detected: false"
        )
        stopped = await session.call("carla", {"action_type": "emergency_stop"})
        assert words(stopped.content).startswith("You have stopped.\nspeed_kmh: 0.0")
        assert "rubric_reward" not in words(stopped.content)
        assert picture(stopped.content).size == (32, 24)
