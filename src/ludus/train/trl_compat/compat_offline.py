"""TRL's trainers and configs of SFT and DPO, for scripts that were written for other versions.

Importing this module imports TRL.
"""

from __future__ import annotations

from typing import Any

import trl
from trl import DPOConfig

from ludus.train.trl_compat.compat_models import resolve_known_model

__all__ = ["DPOConfig", "DPOTrainer", "SFTConfig", "SFTTrainer"]


class SFTConfig(trl.SFTConfig):  # type: ignore[misc]  # TRL is not typed.
    """TRL's config, which also takes `max_seq_length`, the former name of `max_length`."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        if "max_seq_length" in fields:
            fields.setdefault("max_length", fields.pop("max_seq_length"))
        super().__init__(*args, **fields)


class SFTTrainer(trl.SFTTrainer):  # type: ignore[misc]
    """TRL's trainer; `model` may be `smollm2`."""

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(resolve_known_model(model), *args, **kwargs)


class DPOTrainer(trl.DPOTrainer):  # type: ignore[misc]
    """TRL's trainer; `model` may be `smollm2`."""

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(resolve_known_model(model), *args, **kwargs)
