"""Compatibility with TRL: its own rollouts on Ludus environments, and scripts written for TRL.

The names are imported on first use, because importing TRL is slow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ludus.train.trl_compat.compat_offline import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
    from ludus.train.trl_compat.compat_trainer import GRPOConfig, GRPOTrainer
    from ludus.train.trl_compat.task_rows import tasks

__all__ = [
    "DPOConfig",
    "DPOTrainer",
    "GRPOConfig",
    "GRPOTrainer",
    "SFTConfig",
    "SFTTrainer",
    "tasks",
]

_MODULES = {
    "DPOConfig": "compat_offline",
    "DPOTrainer": "compat_offline",
    "GRPOConfig": "compat_trainer",
    "GRPOTrainer": "compat_trainer",
    "SFTConfig": "compat_offline",
    "SFTTrainer": "compat_offline",
    "tasks": "task_rows",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
