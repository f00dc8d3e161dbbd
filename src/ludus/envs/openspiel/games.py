"""Load games of OpenSpiel, draw chance outcomes, and scale returns to rewards."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ludus.errors import did_you_mean

_UNSUPPORTED = frozenset({"crossword"})
"""Games whose actions have no numbers."""
_MAX_INT_PARAMETER = 1000
"""OpenSpiel does not check sizes: some values would crash the process or exhaust its memory."""
_INT_BOUNDS = {
    ("connect_four", "rows"): (1, _MAX_INT_PARAMETER),
    ("go_fish", "initial_cards"): (1, _MAX_INT_PARAMETER),
    ("hanabi", "players"): (2, 5),
    ("hanabi", "colors"): (4, 5),
    ("hanabi", "ranks"): (4, 5),
    ("hanabi", "hand_size"): (1, 5),
}
"""Narrower bounds, outside of which the process crashes; hanabi also with too few cards to deal."""
_WITHOUT_PARAMETERS = frozenset({"dark_chess", "kriegspiel", "rbc", "universal_poker"})
"""Games that take no parameters here: a wrong `fen`, or most wrong values of universal_poker, crash
the process or never return."""


@cache
def game_names() -> tuple[str, ...]:
    """The games in which players move one after another, and that need no parameters."""
    import pyspiel

    return tuple(
        sorted(
            game.short_name
            for game in pyspiel.registered_games()
            if game.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL
            and game.default_loadable
            and game.short_name not in _UNSUPPORTED
        )
    )


def load_game(name: str, params: Mapping[str, Any], *, chance_seed: int) -> Any:
    """Load a game; raises `ValueError` for a wrong name or parameter.

    Some games draw their chance outcomes themselves: these get `chance_seed` as their `rng_seed`.
    """
    import pyspiel

    if name not in game_names():
        hint = did_you_mean(name, game_names(), "See `ludus envs openspiel`.")
        raise ValueError(f"openspiel has no sequential game {name!r}. {hint}")
    known = dict(_parameter_specification(name))
    if params and name in _WITHOUT_PARAMETERS:
        raise ValueError(f"{name} takes no parameters here: OpenSpiel does not check them.")
    for parameter, value in params.items():
        if parameter not in known:
            hint = did_you_mean(parameter, known, f"It takes: {', '.join(known) or 'none'}.")
            raise ValueError(f"{name} has no parameter {parameter!r}. {hint}")
        low, high = _INT_BOUNDS.get((name, parameter), (0, _MAX_INT_PARAMETER))
        if isinstance(value, int) and not low <= value <= high:
            raise ValueError(f"{parameter} must be between {low} and {high}, got {value}.")
    chance = {"rng_seed": chance_seed} if "rng_seed" in known else {}
    try:
        return pyspiel.load_game(name, {**chance, **params})
    except (pyspiel.SpielError, TypeError) as error:
        raise ValueError(f"{name} cannot be loaded with {dict(params)}: {error}") from None


@cache
def _parameter_specification(name: str) -> Mapping[str, Any]:
    import pyspiel

    for game in pyspiel.registered_games():
        if game.short_name == name:
            return dict(game.parameter_specification)
    return {}


def has_perfect_information(game: Any) -> bool:
    import pyspiel

    return bool(game.get_type().information == pyspiel.GameType.Information.PERFECT_INFORMATION)


def is_zero_sum(game: Any) -> bool:
    """Whether what one player wins the others lose."""
    import pyspiel

    utility = pyspiel.GameType.Utility
    return game.get_type().utility in (utility.ZERO_SUM, utility.CONSTANT_SUM)


def has_explicit_chance(game: Any) -> bool:
    """Whether all chance outcomes are known with their probabilities."""
    import pyspiel

    sampled = pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC
    return bool(game.get_type().chance_mode != sampled)


def draw_chance(state: Any, rng: random.Random) -> None:
    """Apply chance outcomes until a player is to move, or the game is over."""
    while state.is_chance_node():
        outcomes: Sequence[tuple[int, float]] = state.chance_outcomes()
        actions = [action for action, _ in outcomes]
        state.apply_action(rng.choices(actions, [chance for _, chance in outcomes])[0])


def scale_return(game: Any, value: float) -> float:
    """Scale a return of the game to a reward from 0 to 1; in most games 1, 0.5 or 0."""
    low, high = float(game.min_utility()), float(game.max_utility())
    return min(max((value - low) / (high - low), 0.0), 1.0)


def info_tensor(state: Any, player: int) -> list[float]:
    """What a player knows, as numbers, in the form of OpenSpiel's own training environments."""
    kind = state.get_game().get_type()
    if kind.provides_information_state_tensor:
        return list(state.information_state_tensor(player))
    if kind.provides_observation_tensor:
        return list(state.observation_tensor(player))
    return []
