"""Starts worker processes, which run a module of Ludus, and keeps a pool of them per process."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


PoolT = TypeVar("PoolT", bound=Closable)


def worker_command(module: str) -> list[str]:
    """The command that runs a module of Ludus; needs the variables of `worker_env`."""
    return [sys.executable, "-P", "-W", "ignore", "-m", module]


def worker_env(**variables: str) -> dict[str, str]:
    """The environment variables of this process and these, and a path on which Ludus is found."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {**os.environ, **variables, "PYTHONPATH": path}


def pool_per_process(create_pool: Callable[[], PoolT]) -> Callable[[], PoolT]:
    """Return a function that returns the pool of this process, which is closed at exit.

    A forked process gets an empty pool. The inherited one is kept, because closing its pipes would
    end the workers of the parent.
    """
    pools = [create_pool()]
    atexit.register(lambda: pools[-1].close())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: pools.append(create_pool()))
    return lambda: pools[-1]
