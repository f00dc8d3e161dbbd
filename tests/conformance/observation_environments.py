"""Environments on OpenEnv's bases that send the observations of TextArena, BrowserGym, OpenSpiel,
CARLA, reasoning_gym and echo: the same fields, filled the same way, without what is behind them."""

from __future__ import annotations

import base64
import io
from typing import Any, ClassVar

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from PIL import Image as Pictures
from pydantic import BaseModel, Field

RULES = "You are Player 0. You are playing Sudoku.\nSubmit a move as [row column number]."
BOARD = "   C1 C2\nR1  .  2\nR2  2  {}"


class _Stateless(Environment[Any, Any, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    @property
    def state(self) -> State:
        return State()


class TextArenaMessage(BaseModel):
    sender_id: int
    content: str
    category: str


class TextArenaAction(Action):
    """Say something to the game."""

    message: str


class TextArenaObservation(Observation):
    prompt: str
    messages: list[TextArenaMessage] = Field(default_factory=list)
    current_player_id: int = 0
    legal_players: list[int] = Field(default_factory=list)
    info: dict[str, Any] = Field(default_factory=dict)


class SudokuEnvironment(_Stateless):
    """As TextArena's wrapper has it: one message that grows, and a prompt only at first."""

    def reset(self, seed: int | None = None, **kwargs: Any) -> TextArenaObservation:
        self._history = f"\n[GAME] {RULES}\n[GAME] {BOARD.format('.')}"
        return self._observation(self._history.strip())

    def step(self, action: TextArenaAction, **kwargs: Any) -> TextArenaObservation:
        self._history += f"\n[Player 0] {action.message}"
        if action.message == "[2 2 1]":
            self._history += f"\n[GAME] {BOARD.format('1')}"
        else:
            self._history += "\n[GAME] Invalid move."
        return self._observation("Sudoku-v0")

    def _observation(self, prompt: str) -> TextArenaObservation:
        message = TextArenaMessage(sender_id=-1, content=self._history, category="MESSAGE")
        return TextArenaObservation(
            prompt=prompt,
            messages=[message],
            legal_players=[0],
            info={"solution": "1"},
            metadata={"env_id": "Sudoku-v0", "raw_messages": [message.model_dump()]},
        )


class BrowserGymAction(Action):
    """Act on the page."""

    action_str: str


class BrowserGymObservation(Observation):
    text: str = ""
    url: str = ""
    screenshot: list[list[list[int]]] | None = None
    goal: str = ""
    axtree_txt: str = ""
    pruned_html: str = ""
    error: str = ""
    last_action_error: bool = False


class BrowserGymEnvironment(_Stateless):
    """A page with one button, and a screenshot of it as an array of pixels."""

    TREE = "RootWebArea 'Click Test', focused\n\t[13] button 'OK'"

    def reset(self, seed: int | None = None, **kwargs: Any) -> BrowserGymObservation:
        return BrowserGymObservation(
            text=self.TREE,
            axtree_txt=self.TREE,
            pruned_html='<button bid="13">OK</button>',
            url="http://localhost:8888/miniwob/click-test.html",
            goal="Click the button.",
            screenshot=[[[255, 0, 0]] * 16] * 12,
            metadata={"browsergym_info": {"task": "click-test"}},
        )

    def step(self, action: BrowserGymAction, **kwargs: Any) -> BrowserGymObservation:
        return BrowserGymObservation(
            url="http://localhost:8888/miniwob/click-test.html",
            goal="Click the button.",
            error=f"ValueError: {action.action_str} is no action",
            last_action_error=True,
        )


class OpenSpielAction(Action):
    """Play an action of the game."""

    action_id: int
    game_name: str = "catch"
    game_params: dict[str, Any] = Field(default_factory=dict)


class OpenSpielObservation(Observation):
    info_state: list[float]
    legal_actions: list[int]
    game_phase: str = "playing"
    current_player_id: int = 0
    opponent_last_action: int | None = None


class OpenSpielEnvironment(_Stateless):
    """Catch: a grid of 10 rows and 5 columns, flat."""

    def reset(self, seed: int | None = None, **kwargs: Any) -> OpenSpielObservation:
        cells = [0.0] * 50
        cells[3] = cells[47] = 1.0
        return OpenSpielObservation(info_state=cells, legal_actions=[0, 1, 2], game_phase="initial")

    def step(self, action: OpenSpielAction, **kwargs: Any) -> OpenSpielObservation:
        return OpenSpielObservation(
            info_state=[0.25, 1.0], legal_actions=[], game_phase="terminal", done=True, reward=1.0
        )


class CarlaAction(Action):
    """Drive."""

    action_type: str = "observe"
    brake: float = 0.0


class CarlaObservation(Observation):
    scene_description: str = ""
    speed_kmh: float = 0.0
    location: tuple[float, float, float] = (0.0, 0.0, 0.0)
    current_lane: str = "unknown"
    nearby_actors: list[dict[str, Any]] = Field(default_factory=list)
    collision_detected: bool = False
    collided_with: str | None = None
    camera_image: str | None = None
    rubric_reward: float | None = None
    done_reason: str = ""


class CarlaEnvironment(_Stateless):
    """A road with a pedestrian on it; a step takes a photograph."""

    def reset(self, seed: int | None = None, **kwargs: Any) -> CarlaObservation:
        return CarlaObservation(
            scene_description="You drive at 40 km/h.\nA pedestrian is 20 m ahead.",
            speed_kmh=40.0,
            location=(1.0, 2.0, 0.5),
            current_lane="lane_0",
            nearby_actors=[{"type": "pedestrian", "distance": 20.0}],
        )

    def step(self, action: CarlaAction, **kwargs: Any) -> CarlaObservation:
        return CarlaObservation(
            scene_description="You have stopped.", camera_image=photograph(), rubric_reward=0.5
        )


class ReasoningGymAction(Action):
    """Submit the final answer."""

    answer: str


class ReasoningGymObservation(Observation):
    question: str | None = None
    score: float | None = None
    correct_answer: str | None = None
    dataset_metadata: dict[str, Any] | None = None


class ReasoningGymEnvironment(_Stateless):
    """One question; remembers which data sets it was asked for."""

    asked: ClassVar[list[Any]] = []

    def reset(self, seed: int | None = None, **kwargs: Any) -> ReasoningGymObservation:
        self.asked.append(kwargs.get("dataset_name"))
        return ReasoningGymObservation(question="1 + 1?", dataset_metadata={"answer": "2"})

    def step(self, action: ReasoningGymAction, **kwargs: Any) -> ReasoningGymObservation:
        return ReasoningGymObservation(score=1.0, correct_answer="2", reward=1.0, done=True)


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed_message: str
    message_length: int = 0


class EchoEnvironment(_Stateless):
    """A step needs no reset."""

    def reset(self, seed: int | None = None, **kwargs: Any) -> EchoObservation:
        return EchoObservation(echoed_message="Echo environment ready!", reward=0.0)

    def step(self, action: EchoAction, **kwargs: Any) -> EchoObservation:
        said = action.message
        return EchoObservation(
            echoed_message=said, message_length=len(said), reward=0.1 * len(said)
        )


def photograph() -> str:
    """A JPEG in base64."""
    buffer = io.BytesIO()
    Pictures.new("RGB", (32, 24), "blue").save(buffer, "JPEG")
    return base64.b64encode(buffer.getvalue()).decode()
