"""Wordle: find a secret word from what earlier guesses had in common with it."""

from ludus.envs.wordle.environment import Wordle

__all__ = ["Wordle"]
