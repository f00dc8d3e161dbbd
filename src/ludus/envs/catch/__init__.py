"""Catch: a ball falls through a grid and a paddle at the bottom has to be under it."""

from ludus.envs.catch.client import CatchEnv
from ludus.envs.catch.environment import Catch
from ludus.envs.catch.models import CatchAction, CatchObservation

__all__ = ["Catch", "CatchAction", "CatchEnv", "CatchObservation"]
