"""All that is known of a run before its rows are read and its weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.policy.dialect import Dialect, any_dialect
from ludus.policy.fingerprint import fingerprint
from ludus.policy.source import Kind, Source, find
from ludus.policy.tokenizer import tokenizer_of
from ludus.train.configs import made
from ludus.train.facts import config_json, devices
from ludus.train.folder import TOKENS, refuse_inside
from ludus.train.rows import DataSet
from ludus.train.settings import Method, Settings
from ludus.train.training import Data, Spoken
from ludus.train.watch import Watch
from ludus.train.world import World


@dataclass(frozen=True, slots=True)
class Job:
    """One training, and what it is made with."""

    method: Method
    data: DataSet
    source: Source
    out: Path
    settings: Settings
    config: Any
    tokenizer: Any
    dialect: Dialect
    world: World
    watch: Watch
    command: str | None

    @property
    def tokens(self) -> Path:
        return self.out / TOKENS

    def about(self, data: Data) -> dict[str, Any]:
        """As `training.json` has it."""
        return {
            "kind": self.method,
            "command": self.command,
            "model": self.source.name,
            "weights": fingerprint(self.source.name),
            "base": self.source.name if self.source.kind is Kind.HUB else None,
            "data": data,
            "dialect": Spoken(name=self.dialect.name, origin=self.dialect.origin),
            "settings": {**self.settings.as_json(), "processes": self.world.size},
            "config": config_json(self.config),
            "seeds": {"seed": self.config.seed, "data_seed": self.config.data_seed},
            "devices": devices(str(self.config.device), self.world.size),
        }


def job_of(
    method: Method, data: DataSet, model: str, out: Path, settings: Settings,
    command: str | None, watch: Watch,
) -> Job:  # fmt: skip
    source = find(model, say=watch.say)
    refuse_inside(out, source)
    config = made(method, settings, out)
    tokenizer = tokenizer_of(source)
    # Whether rows need tools that it does not know is seen on the rows.
    dialect = any_dialect(tokenizer)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    world = World.here()
    return Job(
        method, data, source, out, settings, config, tokenizer, dialect, world, watch, command
    )
