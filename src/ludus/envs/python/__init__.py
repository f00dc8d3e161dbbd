"""Python: write a function against hidden tests; the code runs in a sandbox."""

from ludus.envs.python.client import PythonEnv
from ludus.envs.python.environment import Python
from ludus.envs.python.models import PythonAction, PythonObservation

__all__ = ["Python", "PythonAction", "PythonEnv", "PythonObservation"]
