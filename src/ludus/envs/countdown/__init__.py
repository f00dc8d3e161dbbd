"""Countdown: reach a target by combining the numbers at hand, two at a time."""

from ludus.envs.countdown.client import CountdownEnv
from ludus.envs.countdown.environment import Countdown
from ludus.envs.countdown.models import CountdownAction, CountdownObservation

__all__ = ["Countdown", "CountdownAction", "CountdownEnv", "CountdownObservation"]
