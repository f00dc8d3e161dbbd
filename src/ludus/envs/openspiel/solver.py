"""Exact solutions of small games, computed once per process.

A game of perfect information is solved by expectiminimax over all its positions. A game of
imperfect information with two players and zero sum is solved by CFR+, whose average policy
approaches an equilibrium: the minimax strategy of such a game, which has to mix its moves.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import Any, NamedTuple

from ludus.envs.openspiel.games import has_explicit_chance, has_perfect_information, is_zero_sum

MAX_POSITIONS = 30_000
"""Games with more positions are not solved: it would take more than a few seconds."""
_MAX_LOG10_LINES = 30.0
"""Bound on log10 of moves ** length, above which counting positions is not even tried."""
_CFR_ITERATIONS = 100
_EPSILON = 1e-9


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

    def __init__(self, game: Any) -> None:
        self._values: dict[tuple[int, str], _Value] = {}
        self._value(game.new_initial_state())

    def best_moves(self, state: Any, *, exploit: bool = False) -> list[int]:
        """The moves that are best against a perfect opponent.

        With `exploit`, only those of them that are also best if the opponent moves at random.
        """
        moves, _ = self._rank_moves(state, exploit=exploit)
        return moves

    def expected_return(self, state: Any, player: int, *, random_opponent: bool) -> float:
        """The return of a player who makes no mistake from here on.

        The opponent moves at random, or makes no mistake either.
        """
        value = self._value(state)
        of_first = value.against_random[player] if random_opponent else value.minimax
        return of_first if player == 0 else state.get_game().utility_sum() - of_first

    def _value(self, state: Any) -> _Value:
        if state.is_terminal():
            value = state.returns()[0]
            return _Value(value, (value, value))
        # Some games count moves without showing the count.
        key = (state.move_number(), str(state))
        if (known := self._values.get(key)) is not None:
            return known
        if len(self._values) >= MAX_POSITIONS:
            raise TooLarge
        value = self._chance_value(state) if state.is_chance_node() else self._move_value(state)
        self._values[key] = value
        return value

    def _chance_value(self, state: Any) -> _Value:
        outcomes = [(chance, self._value(state.child(a))) for a, chance in state.chance_outcomes()]
        return _Value(
            sum(chance * value.minimax for chance, value in outcomes),
            (
                sum(chance * value.against_random[0] for chance, value in outcomes),
                sum(chance * value.against_random[1] for chance, value in outcomes),
            ),
        )

    def _move_value(self, state: Any) -> _Value:
        player = state.current_player()
        moves, children = self._rank_moves(state, exploit=True)
        best = children[moves[0]]
        averages = [0.0, 0.0]
        for seat in range(2):
            averages[seat] = sum(c.against_random[seat] for c in children.values()) / len(children)
        averages[player] = best.against_random[player]
        return _Value(best.minimax, (averages[0], averages[1]))

    def _rank_moves(self, state: Any, *, exploit: bool) -> tuple[list[int], dict[int, _Value]]:
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


class Equilibrium:
    """An approximate equilibrium by CFR+; it knows only what the player to move knows."""

    def __init__(self, game: Any) -> None:
        import pyspiel

        _require_few_histories(game.new_initial_state(), 0)
        # The policy reads the solver's memory, and does not keep it alive.
        self._solver = pyspiel.CFRPlusSolver(game)
        for _ in range(_CFR_ITERATIONS):
            self._solver.evaluate_and_update_policy()
        self._policy = self._solver.average_policy()

    def draw_move(self, state: Any, rng: random.Random) -> int:
        policy = sorted(self._policy.action_probabilities(state).items())
        moves = rng.choices([a for a, _ in policy], [chance for _, chance in policy])
        return int(moves[0])


def _require_few_histories(state: Any, count: int) -> int:
    if count >= MAX_POSITIONS:
        raise TooLarge
    for action in () if state.is_terminal() else state.legal_actions():
        count = _require_few_histories(state.child(action), count + 1)
    return count


@lru_cache(maxsize=32)
def solve_game(game_string: str) -> PerfectPlay | Equilibrium | None:
    """The exact solution of a game, or None where it is too large or not of a kind we solve."""
    import pyspiel

    game = pyspiel.load_game(game_string)
    two_player_zero_sum = game.num_players() == 2 and is_zero_sum(game)
    lines = game.max_game_length() * math.log10(max(game.num_distinct_actions(), 2))
    if not has_explicit_chance(game) or lines > _MAX_LOG10_LINES:
        return None
    try:
        if has_perfect_information(game) and (game.num_players() == 1 or two_player_zero_sum):
            return PerfectPlay(game)
        if two_player_zero_sum and game.get_type().provides_information_state_string:
            return Equilibrium(game)
    except TooLarge:
        return None
    return None


def perfect_return(state: Any, player: int, *, random_opponent: bool) -> float | None:
    """`PerfectPlay.expected_return` where the game is solved so, otherwise None."""
    game = state.get_game()
    solution = solve_game(str(game)) if has_perfect_information(game) else None
    if not isinstance(solution, PerfectPlay):
        return None
    return solution.expected_return(state, player, random_opponent=random_opponent)
