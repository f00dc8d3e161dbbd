"""What a player sees one move ahead, in words: own wins and the opponent's threats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ludus.envs.openspiel.games import has_perfect_information
from ludus.envs.openspiel.players import winning_moves

_MAX_MOVES = 16
"""With more legal moves than this nothing is written: all pairs of a move and a reply are tried."""


def describe_threats(state: Any) -> str:
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
