"""Making a model better on TRL: by rows on the disk (SFT, DPO), or by trial (GRPO)."""

from __future__ import annotations

from pathlib import Path

from ludus.environment.mixture import Mixture
from ludus.train.config import Lora, TrainConfig
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.output.result import TrainResult
from ludus.train.progress import TrainProgress
from ludus.train.trl_compat.environment_factory import environment_factory
from ludus.train.trl_compat.rollout_func import rollout_func

__all__ = [
    "GRPOConfig",
    "Lora",
    "TrainConfig",
    "TrainProgress",
    "TrainResult",
    "dpo",
    "environment_factory",
    "grpo",
    "rollout_func",
    "sft",
]

_DEFAULT_CONFIG = TrainConfig()
_DEFAULT_GRPO_CONFIG = GRPOConfig()


def sft(
    data: str | Path,
    model: str,
    out: str | Path,
    config: TrainConfig = _DEFAULT_CONFIG,
    *,
    overwrite: bool = False,
    command: str | None = None,
    progress: TrainProgress | None = None,
) -> TrainResult:
    """Teach a model what its rows' assistants said, and write it to a folder.

    Data is a folder that `ludus curate` wrote, a `.jsonl` or `.parquet` file, or a data set on the
    Hub. Called again with the same settings, a run that was stopped or killed goes on from its
    newest checkpoint; one that is done is left alone. With other settings it is an error, unless
    `overwrite`.
    """
    from ludus.train.offline import train

    return train(
        "sft", data, model, out, config, overwrite=overwrite, command=command, progress=progress
    )


def dpo(
    data: str | Path,
    model: str,
    out: str | Path,
    config: TrainConfig = _DEFAULT_CONFIG,
    *,
    overwrite: bool = False,
    command: str | None = None,
    progress: TrainProgress | None = None,
) -> TrainResult:
    """Teach a model to prefer the better of two attempts; as `sft` in all else."""
    from ludus.train.offline import train

    return train(
        "dpo", data, model, out, config, overwrite=overwrite, command=command, progress=progress
    )


def grpo(
    environment: str | Mixture,
    model: str,
    out: str | Path,
    config: GRPOConfig = _DEFAULT_GRPO_CONFIG,
    *,
    base_url: str | None = None,
    token: str | None = None,
    overwrite: bool = False,
    command: str | None = None,
    progress: TrainProgress | None = None,
) -> TrainResult:
    """Let a model try an environment's tasks in groups, and learn from its better attempts.

    The environment is a spec, a server's address or a mix of them, as for `ludus.collect`. As `sft`
    in all else.
    """
    from ludus.train.grpo.pipeline import train

    return train(
        environment, model, out, config, base_url=base_url, token=token, overwrite=overwrite,
        command=command, watch=progress,
    )  # fmt: skip
