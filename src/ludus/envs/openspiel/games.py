"""The games of OpenSpiel: loading, positions as text, chance, returns, search and rules."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ludus.errors import did_you_mean

if TYPE_CHECKING:
    import pyspiel


_UNSUPPORTED = frozenset({"crossword"})
"""Games whose actions have no numbers."""


@cache
def game_types() -> Mapping[str, pyspiel.GameType]:
    """OpenSpiel's turn-based games that need no parameters, by name."""
    import pyspiel

    return {
        kind.short_name: kind
        for kind in sorted(pyspiel.registered_games(), key=lambda kind: kind.short_name)
        if kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL
        and kind.default_loadable
        and kind.short_name not in _UNSUPPORTED
    }


def load_game(name: str, *, chance_seed: int) -> pyspiel.Game:
    """Load a game of OpenSpiel; raises `ValueError` for an unknown name.

    Games that draw their chance outcomes themselves get `chance_seed` as their `rng_seed`.
    """
    import pyspiel

    if name not in game_types():
        hint = did_you_mean(name, game_types(), "See `ludus envs openspiel`.")
        raise ValueError(f"openspiel has no sequential game {name!r}. {hint}")
    seeded = "rng_seed" in game_types()[name].parameter_specification
    return pyspiel.load_game(name, {"rng_seed": chance_seed} if seeded else {})


def has_perfect_information(kind: pyspiel.GameType) -> bool:
    import pyspiel

    return bool(kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION)


def draw_chance(state: pyspiel.State, rng: random.Random) -> None:
    """Apply chance outcomes until a player is to move, or the game is over."""
    while state.is_chance_node():
        outcomes: Sequence[tuple[int, float]] = state.chance_outcomes()
        actions = [action for action, _ in outcomes]
        state.apply_action(rng.choices(actions, [chance for _, chance in outcomes])[0])


def scale_return(game: pyspiel.Game, value: float) -> float:
    """Scale a return of the game to a reward from 0 to 1; in most games 1, 0.5 or 0."""
    low, high = float(game.min_utility()), float(game.max_utility())
    return min(max((value - low) / (high - low), 0.0), 1.0)


def info_tensor(state: pyspiel.State, player: int) -> list[float]:
    """What a player knows, as numbers, in the form of OpenSpiel's own training environments."""
    kind = state.get_game().get_type()
    if kind.provides_information_state_tensor:
        return list(state.information_state_tensor(player))
    if kind.provides_observation_tensor:
        return list(state.observation_tensor(player))
    return []


_WITH_HISTORY = frozenset({"kuhn_poker", "leduc_poker"})
"""Games whose information state is easier to read than their observation."""
_ANSI_COLOR = re.compile(r"\x1b\[\d+m")


def render_position(state: pyspiel.State, player: int) -> str:
    """Render a position as a player of the game sees it; at the end with all that was hidden."""
    kind = state.get_game().get_type()
    if has_perfect_information(kind) or state.is_terminal():
        text = str(state)
    elif kind.provides_observation_string and kind.short_name not in _WITH_HISTORY:
        text = state.observation_string(player)
    else:
        text = state.information_state_string(player)
    text = _ANSI_COLOR.sub("", text).strip("\n")
    return f"Position:\n{text}" if "\n" in text else f"Position: {text}"


def render_legal_moves(state: pyspiel.State, player: int) -> str:
    moves = (f"{a}: {state.action_to_string(player, a)}" for a in state.legal_actions())
    return "Legal moves (action_id: move): " + ", ".join(moves)


ORACLE_SIMULATIONS = 1000
_UCT_C = 2.0
_MAX_MEMORY_MB = 100
_RESAMPLING_GAMES = (
    "bargaining blackjack colored_trails euchre gin_rummy kuhn_poker leduc_poker oh_hell "
    "universal_poker"
)
_CAN_RESAMPLE = frozenset(_RESAMPLING_GAMES.split())
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


def oracle_move(state: pyspiel.State, rng: random.Random) -> int:
    """A move that wins at once, if there is one that the player can see, else one by search."""
    game, legal = state.get_game(), state.legal_actions()
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
    if len(legal) == 1:
        return int(legal[0])
    return search_move(state, rng, simulations=ORACLE_SIMULATIONS)


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


RULES = {
    "blackjack": """\
Draw cards (Hit) to come closer to 21 points than the dealer, but not over 21; then Stand.
Number cards count their number, J, Q, K and T count 10, an ace (A) 1 or 11. Cards are written
suit first: H7 is the seven of hearts, ?? a hidden card. After you stand, the dealer draws up to
17 points.""",
    "catch": """\
A ball o falls one row with every move, and x is your paddle on the bottom row. Move the paddle
by a column, or let it stay, so that it is under the ball when the ball arrives. . is empty.""",
    "chess": """\
The usual rules of chess. White (player 1) moves first; black is player 0. The position is in
Forsyth-Edwards notation. Moves are in algebraic notation: Nc6, exd5, O-O.""",
    "connect_four": """\
Drop a disc into a column; it falls to the lowest empty cell. Four of your discs in a row,
column or diagonal win; a full board is a draw. Player 0 is x, player 1 is o, . is empty. x3 is
a disc of x in column 3; columns count from 0, from the left.""",
    "dots_and_boxes": """\
Draw one line between two neighbouring dots. Who draws the fourth side of a box owns it and
moves again. Who owns more boxes at the end wins. A box shows the number of its owner: 1 for
player 0, 2 for player 1.""",
    "go": """\
The usual rules of Go. X is black (player 0, who moves first), O is white (player 1), + is
empty. Stones without liberties are taken. At the end who has more area wins; white gets the
komi on top.""",
    "kuhn_poker": """\
There are three cards, 0, 1 and 2, and each player has one; the higher card wins. Each has put 1
chip into the pot. In turn, Pass or Bet 1 chip more. If one bets, the other answers with Bet, to
call, or with Pass, to fold and lose the pot. After two passes or two bets the cards are
compared. The position is your card, then the moves so far: 2pb is the card 2, a pass and a bet.""",
    "leduc_poker": """\
There are six cards: 0 and 1 are jacks, 2 and 3 queens, 4 and 5 kings. Each player has a private
one, and has put 1 chip into the pot. There are two rounds of betting, with raises of 2 and 4
chips and at most two raises each; before the second a public card is shown. A pair with the
public card wins, otherwise the higher card. The moves of Round1 and Round2 are numbers: 0 fold,
1 call, 2 raise.""",
    "nim": """\
In turn, take any number of objects from one pile. Who takes the last object loses. The position
is the player to move, then the sizes of the piles 1, 2, 3...""",
    "tic_tac_toe": """\
Put your mark on an empty cell. Three of your marks in a row, column or diagonal win; a full
board is a draw. Player 0 is x, player 1 is o, . is empty. Rows and columns count from 0, from
the top left: x(0,2) is the top right.""",
}


def describe_rules(game: pyspiel.Game) -> str:
    """Describe the rules of a game in plain words, or by its name and parameters."""
    kind = game.get_type()
    if (rules := RULES.get(kind.short_name)) is not None:
        return rules.replace("\n", " ")
    params = ", ".join(f"{name}={value}" for name, value in game.get_parameters().items())
    return f"It has the rules and symbols of OpenSpiel's {kind.short_name}({params})."
