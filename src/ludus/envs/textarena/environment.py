"""The textarena environment: messages in, messages out, the library's reward."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ludus.data.tool_schema import ToolCall
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import tool
from ludus.envs.textarena.library import build_game, episode_random, game_modules
from ludus.envs.textarena.models import TextArenaMessage, TextArenaObservation
from ludus.envs.textarena.oracles import ORACLES
from ludus.envs.textarena.random_moves import RANDOM_MOVES
from ludus.errors import ToolError
from ludus.protocol.types import State

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
        self._cached_game: tuple[str, Any] | None = None

    @classmethod
    def variants(cls) -> Sequence[str]:
        return tuple(game_modules())

    @classmethod
    def variant_task(cls, variant: str) -> dict[str, Any]:
        return {"game_name": variant}

    @classmethod
    def oracle_variants(cls) -> Sequence[str]:
        return [name for name in game_modules() if _game_family(name) in ORACLES]

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
        return self._observe("\n\n".join([*said, _SCORING]))

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

    def oracle(self) -> ToolCall | None:
        family = _game_family(self.game_name)
        if family not in ORACLES:
            raise NotImplementedError(
                f"{self.game_name} has no oracle. Games that have one: "
                f"{', '.join(sorted(ORACLES))}."
            )
        message = None if self.game.state.done else ORACLES[family](self.game)
        return None if message is None else ToolCall(name="play", arguments={"message": message})

    def random_action(self, rng: random.Random) -> ToolCall | None:
        """A random legal message, in the games that have an oracle."""
        family = _game_family(self.game_name)
        if family not in RANDOM_MOVES or self.game.state.done:
            return None
        message = RANDOM_MOVES[family](self.game, rng)
        return None if message is None else ToolCall(name="play", arguments={"message": message})

    @property
    def state(self) -> State:
        return State.model_validate({"env_id": self.game_name, "num_players": 1})

    @property
    def game(self) -> Any:
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


def _game_family(name: str) -> str:
    return name.partition("-v")[0]
