"""How opponents and the oracle choose their moves; all randomness is drawn from `rng`."""

from __future__ import annotations

import random
from typing import Any, Literal, get_args

from ludus.envs.openspiel.games import draw_chance, has_perfect_information
from ludus.envs.openspiel.solver import PerfectPlay, solve_game

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
no way to ask for it, and prints an error where it fails. Not hearts: it can draw too,
but its tree search ends the process with a segmentation fault after some deals."""


def require_opponent(game: Any, opponent: str) -> None:
    """Raise `ValueError` if the opponent cannot play this game."""
    if opponent not in OPPONENTS:
        raise ValueError(f"opponent must be one of {', '.join(OPPONENTS)}, got {opponent!r}.")
    if opponent == "minimax" and game.num_players() > 1 and solve_game(str(game)) is None:
        raise ValueError(
            f"{game} is too large for the opponent minimax, or is not a zero-sum game for two. "
            "Use mcts."
        )


def opponent_move(opponent: str, state: Any, rng: random.Random, *, simulations: int) -> int:
    """The move of an opponent of the given kind."""
    if opponent == "mcts":
        return search_move(state, rng, simulations=simulations)
    if opponent == "minimax":
        return _solved_move(state, rng, exploit=False)
    return int(rng.choice(state.legal_actions()))


def oracle_move(state: Any, rng: random.Random) -> int:
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


def winning_moves(state: Any) -> list[int]:
    """The moves that end the game with the highest return for the player to move."""
    player, highest = state.current_player(), state.get_game().max_utility()
    children = ((move, state.child(move)) for move in state.legal_actions())
    return [
        move
        for move, child in children
        if child.is_terminal() and child.returns()[player] == highest
    ]


def _solved_move(state: Any, rng: random.Random, *, exploit: bool) -> int:
    solution = solve_game(str(state.get_game()))
    assert solution is not None
    if isinstance(solution, PerfectPlay):
        return rng.choice(solution.best_moves(state, exploit=exploit))
    return solution.draw_move(state, rng)


def search_move(state: Any, rng: random.Random, *, simulations: int) -> int:
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


def _rollout_move(state: Any, rng: random.Random, *, simulations: int) -> int:
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


def _rollout_return(state: Any, player: int, rng: random.Random) -> float:
    state = state.clone()
    for _ in range(_MAX_ROLLOUT_MOVES):
        draw_chance(state, rng)
        if state.is_terminal():
            break
        state.apply_action(rng.choice(state.legal_actions()))
    return float(state.returns()[player])
