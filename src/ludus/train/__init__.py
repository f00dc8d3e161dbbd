"""Training on TRL: SFT and DPO (`ludus.train.offline`), GRPO (`ludus.train.grpo.pipeline`).

The stage functions `sft`, `dpo` and `grpo` are exported from `ludus`.
"""

from __future__ import annotations

from ludus.train.config import Lora, TrainConfig
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.result import TrainProgress, TrainResult
from ludus.train.trl_compat.environment_factory import environment_factory
from ludus.train.trl_compat.rollout_func import rollout_func

__all__ = [
    "GRPOConfig",
    "Lora",
    "TrainConfig",
    "TrainProgress",
    "TrainResult",
    "environment_factory",
    "rollout_func",
]
