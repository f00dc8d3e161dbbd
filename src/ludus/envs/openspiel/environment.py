"""The openspiel environment: seats, opponents, legal moves and reward."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ludus.data.tool_schema import JsonObject, ToolCall
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import tool
from ludus.envs.openspiel import IgnoredName, IgnoredParams, OpenSpielObservation
from ludus.envs.openspiel.games import (
    can_search,
    describe_rules,
    draw_chance,
    game_types,
    has_perfect_information,
    info_tensor,
    load_game,
    oracle_move,
    render_legal_moves,
    render_position,
    scale_return,
    search_move,
)
from ludus.errors import ToolError
from ludus.protocol.types import State

if TYPE_CHECKING:
    import pyspiel


Opponent = Literal["random", "mcts"]

DEFAULT_GAME = "catch"
_MAX_DEALS = 100
_MAX_TURNS = 200
"""The turns of games whose rules allow thousands of moves, such as chess."""
_OPPONENT_STYLES = {
    "random": "moves at random",
    "mcts": "chooses its moves by tree search",
}


class OpenSpiel(ToolEnvironment):
    """Play a game of the OpenSpiel library against an opponent.

    Every game in which players move one after another is a variant: `openspiel:connect_four`. The
    bare name is catch, as with OpenEnv. Single-player games have no opponent.

    Tools:
        play(action_id): plays one of the legal moves; any other number is an error, not a move.
    Observation:
        In `text` the rules (at first), the opponent's moves, the position as the player sees it,
        and the legal moves with their numbers. Beside it the fields of OpenEnv's observation:
        `info_state`, `legal_actions`, `game_phase`, `current_player_id`, `opponent_last_action`.
    Reward:
        At the end, the return of the game scaled from its lowest and highest to 0 and 1: in most
        games 1.0 for a win, 0.5 for a draw and 0.0 for a loss. `game_return` is the return itself.
    Episode end:
        The game is over.
    Task arguments:
        seed: the seat, the chance outcomes, and the moves of the opponent.
        game_name: the game (the variant).
        opponent: `random`, or `mcts` (tree search), which some games refuse.
        seat: the player to be, from 0 (by the seed).
        simulations: how many simulations a move of `mcts` takes (100).
    """

    blocking = True
    # The best reward depends on the game, the opponent and luck.
    max_reward = None

    def __init__(self, variant: str | None = None) -> None:
        self._name = variant or DEFAULT_GAME
        self.game: pyspiel.Game = None

    @classmethod
    def variants(cls) -> Sequence[str]:
        return tuple(game_types())

    @classmethod
    def variant_task(cls, variant: str) -> JsonObject:
        return {"game_name": variant}

    @classmethod
    def oracle_variants(cls) -> Sequence[str]:
        return [name for name, kind in game_types().items() if can_search(kind)]

    def reset(
        self,
        *,
        seed: int | None = None,
        game_name: str | None = None,
        opponent: Opponent = "random",
        seat: int | None = None,
        simulations: int = 100,
    ) -> OpenSpielObservation:
        if not 1 <= simulations <= 100_000:
            raise ValueError(f"simulations must be between 1 and 100000, got {simulations}.")
        self.rng = random.Random(seed)
        self._oracle_seed = self.rng.getrandbits(32)
        self.game = load_game(game_name or self._name, chance_seed=self.rng.getrandbits(31))
        players = self.game.num_players()
        if opponent == "mcts" and players > 1 and not can_search(self.game.get_type()):
            raise ValueError(f"The opponent mcts cannot play {self.game}. Use random.")
        if seat is not None and not 0 <= seat < players:
            raise ValueError(f"seat must be between 0 and {players - 1}, got {seat}.")
        self.seat = self.rng.randrange(players) if seat is None else seat
        self.opponent, self.simulations = opponent, simulations
        self.max_turns = min(self.game.max_game_length(), _MAX_TURNS)
        self._deal()
        return self._observe([self._introduction(), *self._opponent_moves], phase="initial")

    @tool
    def play(
        self, action_id: int, game_name: IgnoredName = "", game_params: IgnoredParams | None = None
    ) -> OpenSpielObservation:
        """Play one of the legal moves.

        Args:
            action_id: The number of a legal move, as listed in the observation.
            game_name: Ignored.
            game_params: Ignored.
        """
        if action_id not in self.position.legal_actions():
            moves = render_legal_moves(self.position, self.seat)
            raise ToolError(f"{action_id} is not a legal move here. {moves}")
        self.position.apply_action(action_id)
        self._play_until_own_turn()
        if not self.position.is_terminal():
            self.award(0.0)
            return self._observe(self._opponent_moves)
        value = self.position.returns()[self.seat]
        outcome = ""
        if self.game.num_players() == 2:
            other = self.position.returns()[1 - self.seat]
            outcome = (
                " You won." if value > other else " You lost." if value < other else " A draw."
            )
        text = self.finish(
            scale_return(self.game, value),
            f"The game is over.{outcome} Your result is {value:g}.",
            game_return=float(value),
        )
        return self._observe([*self._opponent_moves, text])

    def oracle(self, *, rng: random.Random | None = None) -> ToolCall | None:
        """The best move that we know of; see `games.oracle_move`."""
        if not can_search(self.game.get_type()):
            name = self.game.get_type().short_name
            raise NotImplementedError(f"{name} has no oracle: tree search cannot play it.")
        if self.position.is_terminal():
            return None
        if rng is None:
            rng = random.Random(f"{self._oracle_seed}:{self.position.move_number()}")
        return _play(oracle_move(self.position, rng))

    def random_action(self, rng: random.Random) -> ToolCall | None:
        """One of the legal moves."""
        if self.position.is_terminal():
            return None
        return _play(rng.choice(self.position.legal_actions()))

    @property
    def state(self) -> State:
        if self.game is None:
            return State()
        return State.model_validate(
            {
                "game_name": self.game.get_type().short_name,
                "game_params": self.game.get_parameters(),
                "agent_player": self.seat,
                "opponent_policy": self.opponent,
                "num_players": self.game.num_players(),
            }
        )

    def _deal(self) -> None:
        """Start the game. Deals that end before the player can move are dealt again."""
        for _ in range(_MAX_DEALS):
            self.position = self.game.new_initial_state()
            self._play_until_own_turn()
            if not self.position.is_terminal():
                return
        raise ValueError(f"{self.game} never lets player {self.seat} move.")

    def _play_until_own_turn(self) -> None:
        """Draw chance outcomes and opponents' moves until the player is to move."""
        self.opponent_last_action: int | None = None
        self._opponent_moves: list[str] = []
        moves_are_public = has_perfect_information(self.game.get_type())
        while True:
            draw_chance(self.position, self.rng)
            player = self.position.current_player()
            if self.position.is_terminal() or player == self.seat:
                return
            if self.opponent == "mcts":
                action = search_move(self.position, self.rng, simulations=self.simulations)
            else:
                action = self.rng.choice(self.position.legal_actions())
            if moves_are_public:
                move = self.position.action_to_string(player, action)
                self._opponent_moves.append(f"Player {player} played {move}.")
                self.opponent_last_action = action
            self.position.apply_action(action)

    def _observe(self, parts: Sequence[str], phase: str = "playing") -> OpenSpielObservation:
        over = self.position.is_terminal()
        legal = [] if over else self.position.legal_actions()
        moves = [] if over else [render_legal_moves(self.position, self.seat)]
        board = render_position(self.position, self.seat)
        return OpenSpielObservation(
            text="\n".join((*parts, board, *moves)),
            info_state=info_tensor(self.position, self.seat),
            legal_actions=legal,
            game_phase="terminal" if over else phase,
            current_player_id=self.position.current_player(),
            opponent_last_action=self.opponent_last_action,
        )

    def _introduction(self) -> str:
        low, high = self.game.min_utility(), self.game.max_utility()
        players = self.game.num_players()
        lines = [f"The game is {self.game.get_type().long_name}. {describe_rules(self.game)}"]
        if players > 1:
            others = "The opponent" if players == 2 else f"Each of the {players - 1} others"
            style = _OPPONENT_STYLES[self.opponent]
            lines.append(f"You are player {self.seat}. {others} {style}.")
        if (low, high) == (-1, 1) and players > 1:
            lines.append("At the end a win is worth 1, a draw 0.5 and a loss 0.")
        else:
            lines.append(
                f"At the end your result, from {low:g} to {high:g}, is scaled to a reward "
                "from 0 to 1."
            )
        return "\n".join(lines)


def _play(action: int) -> ToolCall:
    return ToolCall(name="play", arguments={"action_id": int(action)})
