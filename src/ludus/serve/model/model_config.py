"""Config of a model server, and its validation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ludus.options import Option, expand_path, parse_duration, parse_mebibytes
from ludus.serve.config import MIB, ListenConfig, ServeError, check_listen_config


@dataclass(frozen=True)
class ModelServeConfig(ListenConfig):
    """The options of `ludus serve-model`, with their defaults. Times are in seconds."""

    port: Annotated[int, Option("Server")] = 8001
    """Port to bind; 0 for any free port."""
    served_name: Annotated[
        str | None,
        Option("Server", name="served_model_name", default="the folder's name, or the Hub id"),
    ] = None
    """The model's name in the API."""
    max_queue: Annotated[int, Option("Limits", hidden=True)] = 1024
    """Requests that may wait beside those that are being decoded; more are refused with 429."""
    max_tokens: Annotated[int, Option("Limits", advanced=True)] = 4096
    """Limit of `max_tokens` in a request, and the default if a request has none."""
    max_choices: int = 128
    """Limit of `n` in a request."""
    max_body: Annotated[
        int,
        Option("Limits", hidden=True, name="max_body_mb", default="16", parse=parse_mebibytes),
    ] = 16 * MIB
    """Maximum size of a request, in MiB."""
    record: Annotated[
        Path | None, Option("Output", metavar="RUN", default="not recorded", parse=expand_path)
    ] = None
    """Run folder in which conversations are recorded as episodes."""
    session_timeout: Annotated[
        float,
        Option("Output", hidden=True, metavar="TIME", default="10m", parse=parse_duration),
    ] = 600.0
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
