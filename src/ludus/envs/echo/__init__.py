"""Echo: the smallest environment there is, for trying out a connection or a trainer."""

from ludus.envs.echo.client import EchoEnv
from ludus.envs.echo.environment import Echo
from ludus.envs.echo.models import EchoAction, EchoObservation

__all__ = ["Echo", "EchoAction", "EchoEnv", "EchoObservation"]
