"""Nothing but the event loop that async tests run on: each test builds its own world."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
