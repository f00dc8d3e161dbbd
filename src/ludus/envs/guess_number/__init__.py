"""Guess a number: each guess is answered with higher or lower."""

from ludus.envs.guess_number.client import GuessNumberEnv
from ludus.envs.guess_number.environment import GuessNumber
from ludus.envs.guess_number.models import GuessNumberAction, GuessNumberObservation

__all__ = ["GuessNumber", "GuessNumberAction", "GuessNumberEnv", "GuessNumberObservation"]
