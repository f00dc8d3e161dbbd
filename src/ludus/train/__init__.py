"""Making a model better: SFT and DPO on TRL, from rows on the disk to a folder with a model."""

from __future__ import annotations

from pathlib import Path

from ludus.train.outcome import Outcome
from ludus.train.settings import Lora, Settings
from ludus.train.watch import Watch

__all__ = ["Lora", "Outcome", "Settings", "Watch", "dpo", "sft"]

_USUAL = Settings()


def sft(
    data: str | Path,
    model: str,
    out: str | Path,
    settings: Settings = _USUAL,
    *,
    overwrite: bool = False,
    command: str | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Teach a model what its rows' assistants said, and write it to a folder.

    Data is a folder that `ludus curate` wrote, a `.jsonl` or `.parquet` file, or a data set on the
    Hub. Called again with the same settings, a run that was stopped or killed goes on from its
    newest checkpoint; one that is done is left alone. With other settings it is an error, unless
    `overwrite`.
    """
    from ludus.train.run import train

    return train(
        "sft", data, model, out, settings, overwrite=overwrite, command=command, watch=watch
    )


def dpo(
    data: str | Path,
    model: str,
    out: str | Path,
    settings: Settings = _USUAL,
    *,
    overwrite: bool = False,
    command: str | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Teach a model to prefer the better of two attempts; as `sft` in all else."""
    from ludus.train.run import train

    return train(
        "dpo", data, model, out, settings, overwrite=overwrite, command=command, watch=watch
    )
