from __future__ import annotations

from pathlib import Path

import pytest

from train.grpo.trials import caller


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that calls well and picks by chance."""
    return caller(tmp_path_factory.mktemp("model"))
