"""Positions as text, without anything that the player may not know."""

from __future__ import annotations

import re
from typing import Any

from ludus.envs.openspiel.games import has_perfect_information

_WITH_HISTORY = frozenset({"kuhn_poker", "leduc_poker"})
"""Games whose information state is easier to read than their observation."""
_ANSI_COLOR = re.compile(r"\x1b\[\d+m")


def render_position(state: Any, player: int) -> str:
    """The position as the player sees it; when the game is over, with all that was hidden."""
    kind = state.get_game().get_type()
    if has_perfect_information(state.get_game()) or state.is_terminal():
        text = str(state)
    elif kind.provides_observation_string and kind.short_name not in _WITH_HISTORY:
        text = state.observation_string(player)
    else:
        text = state.information_state_string(player)
    if kind.short_name == "chess":
        text = _render_fen(text)
    text = _ANSI_COLOR.sub("", text).strip("\n")
    return f"Position:\n{text}" if "\n" in text else f"Position: {text}"


def render_legal_moves(state: Any, player: int) -> str:
    moves = (f"{a}: {state.action_to_string(player, a)}" for a in state.legal_actions())
    return "Legal moves (action_id: move): " + ", ".join(moves)


def _render_fen(fen: str) -> str:
    placement, color, *_ = fen.split()
    rows = placement.split("/")
    lines = []
    for number, row in zip(range(len(rows), 0, -1), rows, strict=True):
        cells = "".join("." * int(cell) if cell.isdigit() else cell for cell in row)
        lines.append(f"{number} {' '.join(cells)}")
    lines.append("  " + " ".join("abcdefgh"[: len(rows)]))
    lines.append(f"To move: {'white' if color == 'w' else 'black'}. FEN: {fen}")
    return "\n".join(lines)
