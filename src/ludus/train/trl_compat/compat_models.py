"""Names of models in scripts that were written for TRL."""

from __future__ import annotations

from typing import Any

from ludus.policy import smollm2


def resolve_known_model(model: Any) -> Any:
    """The folder of `smollm2`, which is downloaded if necessary; any other model as it is."""
    if model != smollm2.NAME:
        return model
    return str(smollm2.model_folder())
