"""Wordle: find a secret word from what earlier guesses had in common with it."""

from ludus.envs.wordle.client import WordleEnv
from ludus.envs.wordle.environment import Wordle
from ludus.envs.wordle.models import WordleAction, WordleObservation

__all__ = ["Wordle", "WordleAction", "WordleEnv", "WordleObservation"]
