"""How opponents and the oracle choose their moves: exactly in small games, by search in others.

All randomness is drawn from `rng`.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from ludus.envs.openspiel.games import has_perfect_information

if TYPE_CHECKING:
    import pyspiel


Opponent = Literal["random", "mcts", "minimax"]
OPPONENTS: tuple[str, ...] = get_args(Opponent)
MAX_POSITIONS = 30_000
"""Games with more positions are not solved: it would take more than a few seconds."""
_MAX_LOG10_LINES = 30.0
"""Bound on log10 of moves ** length, above which counting positions is not even tried."""
_ORACLE_SIMULATIONS = 1000
_UCT_C = 2.0
_MAX_MEMORY_MB = 100
_EPSILON = 1e-9
_CAN_RESAMPLE = frozenset(
    [
        "bargaining",
        "blackjack",
        "colored_trails",
        "euchre",
        "gin_rummy",
        "kuhn_poker",
        "leduc_poker",
        "oh_hell",
        "universal_poker",
    ]
)
"""Games of imperfect information that can draw a position from what a player knows. OpenSpiel has
no way to ask for it, and prints an error if it fails. Not hearts: it can draw too, but its tree
search ends the process with a segmentation fault after some deals; nor bridge, where a move can
take over a minute."""


def can_search(kind: pyspiel.GameType) -> bool:
    """Whether OpenSpiel's tree search plays a game, without seeing what the player must not."""
    import pyspiel

    return kind.reward_model == pyspiel.GameType.RewardModel.TERMINAL and (
        has_perfect_information(kind) or kind.short_name in _CAN_RESAMPLE
    )


def require_opponent(game: pyspiel.Game, opponent: str) -> None:
    """Raise `ValueError` if the opponent cannot play this game."""
    if opponent not in OPPONENTS:
        raise ValueError(f"opponent must be one of {', '.join(OPPONENTS)}, got {opponent!r}.")
    if game.num_players() > 1 and opponent == "minimax" and solve_game(str(game)) is None:
        raise ValueError(
            f"{game} is too large for the opponent minimax, or not a zero-sum game of perfect "
            "information for two."
        )
    if game.num_players() > 1 and opponent == "mcts" and not can_search(game.get_type()):
        raise ValueError(f"The opponent mcts cannot play {game}. Use random.")


def opponent_move(
    opponent: str, state: pyspiel.State, rng: random.Random, *, simulations: int
) -> int:
    """The move of an opponent of the given kind."""
    if opponent == "mcts":
        return search_move(state, rng, simulations=simulations)
    if opponent == "minimax":
        solution = solve_game(str(state.get_game()))
        assert solution is not None
        return rng.choice(solution.best_moves(state))
    return int(rng.choice(state.legal_actions()))


def oracle_move(state: pyspiel.State, rng: random.Random) -> int:
    """The best move that we know of: exact in small games, by search in others.

    A move that wins at once comes first: others may win as surely, but later.
    """
    game, legal = state.get_game(), state.legal_actions()
    if len(legal) == 1:
        return int(legal[0])
    if has_perfect_information(game.get_type()):
        player, highest = state.current_player(), game.max_utility()
        children = ((move, state.child(move)) for move in legal)
        wins = [
            move
            for move, child in children
            if child.is_terminal() and child.returns()[player] == highest
        ]
        if wins:
            return int(rng.choice(wins))
    if (solution := solve_game(str(game))) is not None:
        return rng.choice(solution.best_moves(state, exploit=True))
    return search_move(state, rng, simulations=_ORACLE_SIMULATIONS)


def search_move(state: pyspiel.State, rng: random.Random, *, simulations: int) -> int:
    """A move by Monte Carlo tree search with random rollouts.

    With imperfect information it searches over positions that are possible for the player (ISMCTS).
    """
    import pyspiel

    game = state.get_game()
    seed = rng.getrandbits(31)
    evaluator = pyspiel.RandomRolloutEvaluator(1, rng.getrandbits(31))
    if has_perfect_information(game.get_type()):
        bot = pyspiel.MCTSBot(
            game, evaluator, _UCT_C, simulations, _MAX_MEMORY_MB, True, seed, False
        )
    else:
        most_visited = pyspiel.ISMCTSFinalPolicyType.MAX_VISIT_COUNT
        bot = pyspiel.ISMCTSBot(
            seed, evaluator, _UCT_C, simulations, -1, most_visited, False, False
        )
    return int(bot.step(state))


class TooLarge(Exception):
    """The game has more than `MAX_POSITIONS` positions."""


class _Value(NamedTuple):
    """The value of a position, as returns of player 0."""

    minimax: float
    """If both players play perfectly."""
    against_random: tuple[float, float]
    """If player 0, or player 1, plays perfectly and the other one at random."""


class PerfectPlay:
    """Expectiminimax over all positions of a game with one player, or with two and zero sum."""

    def __init__(self, game: pyspiel.Game) -> None:
        self._values: dict[tuple[int, str], _Value] = {}
        self._value(game.new_initial_state())

    def best_moves(self, state: pyspiel.State, *, exploit: bool = False) -> list[int]:
        """The moves that are best against a perfect opponent.

        With `exploit`, only those of them that are also best if the opponent moves at random.
        """
        return self._rank_moves(state, exploit=exploit)[0]

    def expected_return(self, state: pyspiel.State, player: int, *, random_opponent: bool) -> float:
        """The return of a player who makes no mistake from here on.

        The opponent moves at random, or makes no mistake either.
        """
        value = self._value(state)
        of_first = value.against_random[player] if random_opponent else value.minimax
        return of_first if player == 0 else state.get_game().utility_sum() - of_first

    def _value(self, state: pyspiel.State) -> _Value:
        if state.is_terminal():
            value = state.returns()[0]
            return _Value(value, (value, value))
        # Some games count moves without showing the count.
        key = (state.move_number(), str(state))
        if key not in self._values:
            if len(self._values) >= MAX_POSITIONS:
                raise TooLarge
            if state.is_chance_node():
                outcomes = [(p, self._value(state.child(a))) for a, p in state.chance_outcomes()]
            else:
                moves, children = self._rank_moves(state, exploit=True)
                outcomes = [(1 / len(children), child) for child in children.values()]
            minimax = sum(chance * value.minimax for chance, value in outcomes)
            averages = [sum(p * value.against_random[i] for p, value in outcomes) for i in (0, 1)]
            if not state.is_chance_node():
                best, player = children[moves[0]], state.current_player()
                minimax, averages[player] = best.minimax, best.against_random[player]
            self._values[key] = _Value(minimax, (averages[0], averages[1]))
        return self._values[key]

    def _rank_moves(
        self, state: pyspiel.State, *, exploit: bool
    ) -> tuple[list[int], dict[int, _Value]]:
        """The best moves, and the values of the positions after all moves."""
        player = state.current_player()
        sign = 1 if player == 0 else -1
        children = {action: self._value(state.child(action)) for action in state.legal_actions()}
        top = max(sign * child.minimax for child in children.values())
        moves = [a for a, child in children.items() if sign * child.minimax >= top - _EPSILON]
        if exploit:
            gains = {a: sign * children[a].against_random[player] for a in moves}
            most = max(gains.values())
            moves = [a for a in moves if gains[a] >= most - _EPSILON]
        return moves, children


@lru_cache(maxsize=32)
def solve_game(game_string: str) -> PerfectPlay | None:
    """The exact solution of a game, or None if it is too large or not of a kind we solve."""
    import pyspiel

    game = pyspiel.load_game(game_string)
    kind, utility = game.get_type(), pyspiel.GameType.Utility
    zero_sum = kind.utility in (utility.ZERO_SUM, utility.CONSTANT_SUM)
    sampled = kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC
    lines = game.max_game_length() * math.log10(max(game.num_distinct_actions(), 2))
    if not has_perfect_information(kind) or sampled or lines > _MAX_LOG10_LINES:
        return None
    if game.num_players() > 2 or (game.num_players() == 2 and not zero_sum):
        return None
    try:
        return PerfectPlay(game)
    except TooLarge:
        return None
