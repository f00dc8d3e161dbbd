"""How opponents and the oracle choose their moves; all randomness is drawn from `rng`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from ludus.envs.openspiel.games import (
    draw_chance,
    has_explicit_chance,
    has_perfect_information,
    is_zero_sum,
)

if TYPE_CHECKING:
    import pyspiel


Opponent = Literal["random", "mcts", "minimax"]
OPPONENTS: tuple[str, ...] = get_args(Opponent)

WITHOUT_ORACLE = frozenset(
    ["bridge", "bridge_uncontested_bidding", "coordinated_mp", "dou_dizhu", "hanabi"]
)
"""Games in which the oracle is of no use. A move of bridge can take over a minute. Beside players
who move at random, no strategy gains anything in coordinated_mp, and hanabi is always lost. Returns
in dou_dizhu, mostly within 12, all but vanish on its scale from -24576 to 49152."""
_ORACLE_SIMULATIONS = 1000
_UCT_C = 2.0
_MAX_MEMORY_MB = 100
_MAX_ROLLOUTS, _MAX_ROLLOUT_MOVES = 100, 20
"""These rollouts run in Python, and are slow."""
_CAN_RESAMPLE = frozenset(
    [
        "bargaining",
        "blackjack",
        "bridge",
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
no way to ask for it, and prints an error if it fails. Not hearts: it can draw too,
but its tree search ends the process with a segmentation fault after some deals."""


def require_opponent(game: pyspiel.Game, opponent: str) -> None:
    """Raise `ValueError` if the opponent cannot play this game."""
    if opponent not in OPPONENTS:
        raise ValueError(f"opponent must be one of {', '.join(OPPONENTS)}, got {opponent!r}.")
    if opponent == "minimax" and game.num_players() > 1 and solve_game(str(game)) is None:
        raise ValueError(
            f"{game} is too large for the opponent minimax, or is not a zero-sum game for two. "
            "Use mcts."
        )


def opponent_move(
    opponent: str, state: pyspiel.State, rng: random.Random, *, simulations: int
) -> int:
    """The move of an opponent of the given kind."""
    if opponent == "mcts":
        return search_move(state, rng, simulations=simulations)
    if opponent == "minimax":
        return _solved_move(state, rng, exploit=False)
    return int(rng.choice(state.legal_actions()))


def oracle_move(state: pyspiel.State, rng: random.Random) -> int:
    """The best move that we know of: exact in small games, by search in others.

    A move that wins at once comes first: others may win as surely, but later.
    """
    if len(state.legal_actions()) == 1:
        return int(state.legal_actions()[0])
    if has_perfect_information(state.get_game()) and (wins := winning_moves(state)):
        return rng.choice(wins)
    if solve_game(str(state.get_game())) is not None:
        return _solved_move(state, rng, exploit=True)
    return search_move(state, rng, simulations=_ORACLE_SIMULATIONS)


def winning_moves(state: pyspiel.State) -> list[int]:
    """The moves that end the game with the highest return for the player to move."""
    player, highest = state.current_player(), state.get_game().max_utility()
    children = ((move, state.child(move)) for move in state.legal_actions())
    return [
        move
        for move, child in children
        if child.is_terminal() and child.returns()[player] == highest
    ]


def _solved_move(state: pyspiel.State, rng: random.Random, *, exploit: bool) -> int:
    solution = solve_game(str(state.get_game()))
    assert solution is not None
    if isinstance(solution, PerfectPlay):
        return rng.choice(solution.best_moves(state, exploit=exploit))
    return solution.draw_move(state, rng)


def search_move(state: pyspiel.State, rng: random.Random, *, simulations: int) -> int:
    """A move by Monte Carlo tree search with random rollouts.

    With imperfect information it searches over positions that are possible for the player, where
    the game can draw them (ISMCTS); in other such games it sees the whole position.
    """
    import pyspiel

    game = state.get_game()
    kind = game.get_type()
    if kind.reward_model != pyspiel.GameType.RewardModel.TERMINAL:
        return _rollout_move(state, rng, simulations=simulations)
    seed = rng.getrandbits(31)
    evaluator = pyspiel.RandomRolloutEvaluator(1, rng.getrandbits(31))
    if not has_perfect_information(game) and kind.short_name in _CAN_RESAMPLE:
        most_visited = pyspiel.ISMCTSFinalPolicyType.MAX_VISIT_COUNT
        bot = pyspiel.ISMCTSBot(
            seed, evaluator, _UCT_C, simulations, -1, most_visited, False, False
        )
    else:
        bot = pyspiel.MCTSBot(
            game, evaluator, _UCT_C, simulations, _MAX_MEMORY_MB, True, seed, False
        )
    return int(bot.step(state))


def _rollout_move(state: pyspiel.State, rng: random.Random, *, simulations: int) -> int:
    """The move with the best average return of random rollouts.

    For games with rewards before the end, which OpenSpiel's tree search does not play.
    """
    player = state.current_player()
    actions = state.legal_actions()
    rollouts = max(min(simulations, _MAX_ROLLOUTS) // len(actions), 1)
    totals = {
        action: sum(_rollout_return(state.child(action), player, rng) for _ in range(rollouts))
        for action in actions
    }
    return int(max(actions, key=lambda action: totals[action]))


def _rollout_return(state: pyspiel.State, player: int, rng: random.Random) -> float:
    state = state.clone()
    for _ in range(_MAX_ROLLOUT_MOVES):
        draw_chance(state, rng)
        if state.is_terminal():
            break
        state.apply_action(rng.choice(state.legal_actions()))
    return float(state.returns()[player])


_MAX_MOVES = 16
"""With more legal moves than this nothing is written: all pairs of a move and a reply are tried."""


def describe_threats(state: pyspiel.State) -> str:
    """Which moves win at once, for the player to move or else for the opponent.

    Empty in games of imperfect information or chance, with other than two players or many moves.
    """
    game, legal = state.get_game(), state.legal_actions()
    deterministic = game.max_chance_outcomes() == 0
    if game.num_players() != 2 or not (has_perfect_information(game) and deterministic):
        return ""
    if len(legal) > _MAX_MOVES:
        return ""
    if wins := winning_moves(state):
        return f"I can win with {_join_moves(wins)}."
    replies = {move: winning_moves(state.child(move)) for move in legal}
    # A reply that wins after one move only was made possible by that move.
    threats = [
        reply
        for reply in sorted({reply for moves in replies.values() for reply in moves})
        if all(reply in moves for move, moves in replies.items() if move != reply)
    ]
    if threats:
        return f"The opponent could win with {_join_moves(threats)}."
    return "Nobody can win with one move."


def _join_moves(moves: Sequence[int]) -> str:
    return " or ".join(map(str, moves))


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

    def __init__(self, game: pyspiel.Game) -> None:
        self._values: dict[tuple[int, str], _Value] = {}
        self._value(game.new_initial_state())

    def best_moves(self, state: pyspiel.State, *, exploit: bool = False) -> list[int]:
        """The moves that are best against a perfect opponent.

        With `exploit`, only those of them that are also best if the opponent moves at random.
        """
        moves, _ = self._rank_moves(state, exploit=exploit)
        return moves

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
        if (known := self._values.get(key)) is not None:
            return known
        if len(self._values) >= MAX_POSITIONS:
            raise TooLarge
        value = self._chance_value(state) if state.is_chance_node() else self._move_value(state)
        self._values[key] = value
        return value

    def _chance_value(self, state: pyspiel.State) -> _Value:
        outcomes = [(chance, self._value(state.child(a))) for a, chance in state.chance_outcomes()]
        return _Value(
            sum(chance * value.minimax for chance, value in outcomes),
            (
                sum(chance * value.against_random[0] for chance, value in outcomes),
                sum(chance * value.against_random[1] for chance, value in outcomes),
            ),
        )

    def _move_value(self, state: pyspiel.State) -> _Value:
        player = state.current_player()
        moves, children = self._rank_moves(state, exploit=True)
        best = children[moves[0]]
        averages = [0.0, 0.0]
        for seat in range(2):
            averages[seat] = sum(c.against_random[seat] for c in children.values()) / len(children)
        averages[player] = best.against_random[player]
        return _Value(best.minimax, (averages[0], averages[1]))

    def _rank_moves(
        self, state: pyspiel.State, *, exploit: bool
    ) -> tuple[list[int], dict[int, _Value]]:
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

    def __init__(self, game: pyspiel.Game) -> None:
        import pyspiel

        _require_few_histories(game.new_initial_state(), 0)
        # The policy reads the solver's memory, and does not keep it alive.
        self._solver = pyspiel.CFRPlusSolver(game)
        for _ in range(_CFR_ITERATIONS):
            self._solver.evaluate_and_update_policy()
        self._policy = self._solver.average_policy()

    def draw_move(self, state: pyspiel.State, rng: random.Random) -> int:
        policy = sorted(self._policy.action_probabilities(state).items())
        moves = rng.choices([a for a, _ in policy], [chance for _, chance in policy])
        return int(moves[0])


def _require_few_histories(state: pyspiel.State, count: int) -> int:
    if count >= MAX_POSITIONS:
        raise TooLarge
    for action in () if state.is_terminal() else state.legal_actions():
        count = _require_few_histories(state.child(action), count + 1)
    return count


@lru_cache(maxsize=32)
def solve_game(game_string: str) -> PerfectPlay | Equilibrium | None:
    """The exact solution of a game, or None if it is too large or not of a kind we solve."""
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


def perfect_return(state: pyspiel.State, player: int, *, random_opponent: bool) -> float | None:
    """`PerfectPlay.expected_return` if the game is solved so, otherwise None."""
    game = state.get_game()
    solution = solve_game(str(game)) if has_perfect_information(game) else None
    if not isinstance(solution, PerfectPlay):
        return None
    return solution.expected_return(state, player, random_opponent=random_opponent)
