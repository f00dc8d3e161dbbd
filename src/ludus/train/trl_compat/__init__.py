"""Compatibility with TRL: its own rollouts on Ludus environments, and scripts written for TRL.

The names are imported on first use, because importing TRL is slow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ludus.train.trl_compat.environment_factory import tasks

if TYPE_CHECKING:
    from ludus.train.trl_compat.trainers import (
        GRPOConfig,
        GRPOTrainer,
        SFTConfig,
        SFTTrainer,
    )

__all__ = [
    "GRPOConfig",
    "GRPOTrainer",
    "SFTConfig",
    "SFTTrainer",
    "tasks",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.trainers"), name)
