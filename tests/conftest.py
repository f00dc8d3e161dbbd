"""The event loop that async tests run on, and one thread for each of those who test: each test
builds its own world."""

import gc
import os
from collections.abc import Iterator

import pytest

# As many workers as there are cores: with several threads each, tiny models wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Hundreds of modules are loaded, and none of what they make is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
