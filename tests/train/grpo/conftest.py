from __future__ import annotations

from pathlib import Path

import pytest

from train.grpo.toy_environments import train_tool_caller


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that writes tool calls with random arguments."""
    return train_tool_caller(tmp_path_factory.mktemp("model"))
