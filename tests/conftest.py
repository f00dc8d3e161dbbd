"""The event loop that async tests run on, and one thread for each of those who test: each test
builds its own world."""

import os

import pytest

# As many workers as there are cores: with several threads each, tiny models wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
