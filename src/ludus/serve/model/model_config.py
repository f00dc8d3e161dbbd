"""Config of a model server, and its validation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ludus.serve.config import MIB, ListenConfig, ServeError, check_listen_config


@dataclass(frozen=True, slots=True)
class ModelServeConfig(ListenConfig):
    """The options of `ludus serve-model`, with their defaults. Times are in seconds."""

    served_name: str | None = None
    """The model's name in the API. Default: the name of its folder, or its Hub id."""
    max_queue: int = 1024
    """Requests that may wait beside those that are being decoded; more are refused with 429."""
    max_tokens: int = 4096
    """Limit of `max_tokens` in a request, and the default where a request has none."""
    max_choices: int = 128
    """Limit of `n` in a request."""
    max_body: int = 16 * MIB
    """Maximum size of a request, in bytes."""
    record: Path | None = None
    """Run folder that the conversations are recorded in."""
    session_timeout: float = 600.0
    """Time without a call after which a recorded session ends without a reward."""
    shutdown_timeout: float = 30.0
    """Time that running requests get to finish at shutdown."""


def check_model_config(config: ModelServeConfig) -> None:
    """Raise `ServeError` for a config that is unsafe or cannot work."""
    check_listen_config(config)
    limits = {"max_queue": 0, "max_tokens": 1, "max_choices": 1, "max_body": 1}
    for name, least in limits.items():
        if getattr(config, name) < least:
            raise ServeError(f"`{name}` must be at least {least}, got {getattr(config, name)}.")
    if config.session_timeout <= 0:
        raise ServeError(f"`session_timeout` must be positive, got {config.session_timeout}.")
