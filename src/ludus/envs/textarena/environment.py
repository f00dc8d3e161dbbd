"""The textarena environment: messages in, messages out, the library's reward.

TextArena draws from Python's global generator. Here its modules get a replacement for `random` that
draws from the generator of the episode whose call is running. Episodes in several threads then do
not disturb each other, nor the rest of the process.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from ludus.data.tool_schema import JsonObject
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import tool
from ludus.envs.textarena import TextArenaMessage, TextArenaObservation
from ludus.errors import ToolError, did_you_mean
from ludus.protocol.types import State

if TYPE_CHECKING:
    from textarena import Env


DEFAULT_GAME = "GuessTheNumber-v0"
_PLAYER, _GAME = 0, -1
_MAX_DEALS = 10
_SCORING = (
    "Send one move per message. At the end the game gives a reward: 1 if you solve it, otherwise "
    "less, in most games for how far you came. Two invalid moves in a row end the game."
)


class TextArena(ToolEnvironment):
    """Play a single-player game of the TextArena library by sending messages to it.

    Every single-player game of the library is a variant: `textarena:Wordle-v0`. The bare name is
    GuessTheNumber-v0.

    Tools:
        play(message): sends a message; the move in it is in square brackets, such as `[10]`.
    Observation:
        In `text` the rules and the first position, then what the game said since the last move.
        Beside it the fields of OpenEnv's observation: `messages` has one message with everything
        that was said so far, the player's moves included.
    Reward:
        The library's, at the end: 1.0 for a solved game; otherwise less, which most games compute
        from how far the player came.
    Episode end:
        The game is solved or lost, its moves are used up, or two moves in a row were invalid.
    Task arguments:
        seed: the game's random numbers.
        game_name: the game (the variant).
    """

    blocking = True

    def __init__(self, variant: str | None = None) -> None:
        self._name = self.game_name = variant or DEFAULT_GAME
        self._cached_game: tuple[str, Env] | None = None

    @classmethod
    def variants(cls) -> Sequence[str]:
        return tuple(game_modules())

    @classmethod
    def variant_task(cls, variant: str) -> JsonObject:
        return {"game_name": variant}

    def reset(
        self, *, seed: int | None = None, game_name: str | None = None
    ) -> TextArenaObservation:
        self.game_name = game_name or self._name
        if self._cached_game is None or self._cached_game[0] != self.game_name:
            self._cached_game = (self.game_name, build_game(self.game_name))
        self._wrapped_game = self._cached_game[1]
        self.rng = random.Random(seed)
        self._deal(self.rng.getrandbits(32) if seed is None else seed)
        self.max_turns = self.game.state.max_turns
        self._transcript = ""
        said = [text.strip("\n") for text in self._new_texts()]
        self._opening = "\n\n".join([*said, _SCORING])
        return self._observe(self._opening)

    def task_key(self) -> str:
        """Return the opening of the game and its state, which may have a secret number or code."""
        state = self.game.state.game_state
        hidden = json.dumps(state, default=lambda value: type(value).__name__, skipkeys=True)
        return self._opening + hidden

    @tool
    def play(self, message: str) -> TextArenaObservation:
        """Send a message to the game.

        Args:
            message: Your move, in the form that the game asks for, for example: [crane].
        """
        with episode_random.use(self.rng):
            try:
                done, _ = self._wrapped_game.step(action=message)
            except Exception as error:
                # The games parse messages of a model, and not all of them check everything.
                raise ToolError(
                    f"{self.game_name} cannot read this message ({error}). Send a move in the "
                    "form that the rules ask for."
                ) from error
            texts = [text.strip() for text in self._new_texts()]
        if not done:
            return self._observe("\n".join(texts))
        rewards, info = self.game.state.close()
        reason = str(info[_PLAYER].get("reason") or "The game is over.")
        self.finish(float(rewards[_PLAYER]))
        observation = self._observe("\n".join([*texts, reason]))
        observation.info = {key: value for key, value in info[_PLAYER].items() if key != "role"}
        return observation

    @property
    def state(self) -> State:
        return State.model_validate({"env_id": self.game_name, "num_players": 1})

    @property
    def game(self) -> Env:
        """The game itself, without the library's wrappers around it."""
        game = self._wrapped_game
        while hasattr(game, "env"):
            game = game.env
        return game

    def _deal(self, seed: int) -> None:
        """Start the game. A deal that the library fails on, such as a solved one, is repeated."""
        for attempt in range(_MAX_DEALS):
            try:
                with episode_random.use(self.rng):
                    self._wrapped_game.reset(num_players=1, seed=seed)
                return
            except ArithmeticError:
                if attempt == _MAX_DEALS - 1:
                    raise
                seed = self.rng.getrandbits(32)

    def _new_texts(self) -> list[str]:
        """What the game has said since the last call; without the player's own messages.

        All of it is added to the transcript, in the form of the library's wrapper for models.
        """
        _, observations = self.game.get_observation()
        roles = self.game.state.role_mapping
        for sender, text, _ in observations:
            name = "GAME" if sender == _GAME else roles.get(sender, f"Player {sender}")
            self._transcript += f"\n[{name}] {text}"
        return [
            text
            for _, text, kind in observations
            # Some games put the player's message where the kind should be.
            if not isinstance(kind, str) and kind.name != "PLAYER_ACTION"
        ]

    def _observe(self, text: str) -> TextArenaObservation:
        first_turn = self.game.state.turn == 0
        return TextArenaObservation(
            text=text.strip(),
            prompt=self._transcript.strip() if first_turn else self.game_name,
            messages=[TextArenaMessage(content=self._transcript)],
            legal_players=[_PLAYER],
            reward=0.0,
        )


_SINGLE_PLAYER_GAMES = (
    "2048 Bandit Blackjack Countdown Crosswords Cryptarithm FifteenPuzzle FrozenLake "
    "GuessTheNumber Hangman LightsOut LogicPuzzle Mastermind Minesweeper PegJump RushHour "
    "Secretary Set Slitherlink Sokoban Sudoku ThreeCardMonte TowerOfHanoi WordLadder WordSearch "
    "Wordle"
)
_REPEATED_SUFFIXES = ("-train", "-raw")
"""The same games with other wrappers around their observations, which are not used here."""
_NLTK_HINT = "python -m nltk.downloader words averaged_perceptron_tagger_eng"
_build_lock = threading.Lock()


class EpisodeRandom:
    """Replaces the module `random`; draws from the running episode's generator, if any."""

    def __init__(self) -> None:
        self._thread = threading.local()

    def __getattr__(self, name: str) -> Any:
        if not hasattr(random.Random, name):
            return getattr(random, name)

        # The generator is looked up in each call, because some games keep the function.
        def draw(*args: Any, **options: Any) -> Any:
            rng = getattr(self._thread, "rng", None)
            return getattr(rng or random, name)(*args, **options)

        return draw

    @contextmanager
    def use(self, rng: random.Random) -> Iterator[None]:
        """Let TextArena's games draw from `rng` within the block, in this thread."""
        self._thread.rng = rng
        try:
            yield
        finally:
            self._thread.rng = None


episode_random = EpisodeRandom()


@cache
def game_modules() -> Mapping[str, str]:
    """The names of TextArena's single-player games, with the modules they are in."""
    games = frozenset(_SINGLE_PLAYER_GAMES.split())
    return {
        name: spec.entry_point.partition(":")[0]
        for name, spec in sorted(_load_library().ENV_REGISTRY.items())
        if name.partition("-v")[0] in games and not name.endswith(_REPEATED_SUFFIXES)
    }


def build_game(name: str) -> Env:
    """Build a game; raises `ValueError` if it is unknown or lacks something that it needs."""
    modules = game_modules()
    if name not in modules:
        hint = did_you_mean(name, modules, "See `ludus envs textarena`.")
        raise ValueError(f"TextArena has no single-player game {name!r}. {hint}")
    with _build_lock, _without_downloads():
        try:
            importlib.import_module(modules[name])
            for module_name, module in list(sys.modules.items()):
                if module_name.startswith("textarena."):
                    # Some games print what they do, on the stdout of the process.
                    vars(module)["print"] = lambda *values, **options: None
                    if vars(module).get("random") is random:
                        vars(module)["random"] = episode_random
            # Constructors draw too, and all sessions must get the same game.
            with episode_random.use(random.Random(name)):
                return _load_library().make(name)
        except LookupError:
            raise ValueError(
                f"{name} needs word lists that NLTK does not come with. Run: {_NLTK_HINT}"
            ) from None


@cache
def _load_library() -> Any:
    with _without_downloads():
        importlib.import_module("textarena")
        word_lists: Any = importlib.import_module("textarena.envs.utils.word_lists")
        state: Any = importlib.import_module("textarena.state")
    set_invalid_move = state.SinglePlayerState.set_invalid_move

    def set_invalid_move_in_order(state: Any, reason: Any = None, reward: Any = -1.0) -> None:
        # Some games give the reward and the reason of an invalid move in the wrong order.
        if isinstance(reward, str):
            reason, reward = reward, reason
        set_invalid_move(state, reason=reason, reward=reward)

    state.SinglePlayerState.set_invalid_move = set_invalid_move_in_order
    # The dictionary takes seconds to build and is never changed: one is enough for all games.
    word_lists.EnglishDictionary = cache(word_lists.EnglishDictionary)
    return importlib.import_module("textarena.envs.registration")


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Keep games from downloading word lists when they are imported or built.

    Some do so every time, even if the lists are there, and print on stdout what they do.
    """
    import nltk

    download = nltk.download
    nltk.download = lambda *args, **kwargs: False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        nltk.download = download
