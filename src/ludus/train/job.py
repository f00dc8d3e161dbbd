"""All that is known of a run before its rows are read and its weights are loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ludus.data.tools import JsonObject
from ludus.errors import ConfigError
from ludus.policy.dialect import Dialect, any_dialect
from ludus.policy.eyes.families import eyes_of
from ludus.policy.eyes.sight import Eyes
from ludus.policy.fingerprint import fingerprint
from ludus.policy.source import Kind, Source, find
from ludus.policy.tokenizer import tokenizer_of
from ludus.train.configs import made
from ludus.train.curve import draw
from ludus.train.facts import config_json, devices
from ludus.train.folder import TOKENS, refuse_inside
from ludus.train.overrides import without_repeated
from ludus.train.rows import DataSet
from ludus.train.sample_task import task_of_rows
from ludus.train.settings import Method, Settings, Shared
from ludus.train.training import Example, Spoken, Training
from ludus.train.watch import Watch
from ludus.train.world import World


@dataclass(frozen=True)
class Job(ABC):
    """One training, and what it is made with."""

    method: Method
    source: Source
    out: Path
    config: Shared
    config: Any
    tokenizer: Any
    dialect: Dialect
    world: World
    watch: Watch
    command: str | None
    eyes: Eyes | None
    """How images are shown to the model, where it sees."""
    extensible: ClassVar[bool] = False
    """Whether a finished run goes on when it is asked for more steps; its last checkpoint is kept
    for that."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """What it is trained on, in a word."""

    @abstractmethod
    def known(self, there: Training) -> dict[str, Any]:
        """What is trained on, as far as it decides whether a run that is there is this one."""

    @abstractmethod
    def draw(self, lines: Sequence[JsonObject], file: Path, title: str) -> None:
        """The picture of how it went."""

    @abstractmethod
    def example(self) -> Example | None:
        """One of the tasks, for the card."""

    def finish(self) -> None:
        """Write what else the model's folder needs."""
        if self.eyes is not None:
            self.eyes.save(self.out)

    def about(self, trained_on: Mapping[str, Any]) -> dict[str, Any]:
        """As `training.json` has it."""
        return {
            "kind": self.method,
            "command": self.command,
            "model": self.source.name,
            "weights": fingerprint(self.source.name),
            "base": self.source.name if self.source.kind is Kind.HUB else None,
            **trained_on,
            "sees": self.eyes is not None,
            "dialect": Spoken(
                name=self.dialect.name,
                origin=self.dialect.origin,
                chat_template_kwargs=dict(self.dialect.chat_template_kwargs),
            ),
            "settings": {**self.config.as_json(), "processes": self.world.size},
            "config": config_json(self.config),
            "seeds": {"seed": self.config.seed, "data_seed": self.config.data_seed},
            "devices": devices(str(self.config.device), self.world.size),
        }


@dataclass(frozen=True)
class RowsJob(Job):
    """A training on rows that lie on the disk."""

    config: Settings
    data: DataSet

    @property
    def tokens(self) -> Path:
        return self.out / TOKENS

    @property
    def subject(self) -> str:
        return self.data.name

    def known(self, there: Training) -> dict[str, Any]:
        # How many rows there are follows from their digest, and is known only when they are read.
        assert there.data is not None
        return {"data": there.data.model_copy(update={"digest": self.data.digest})}

    def example(self) -> Example | None:
        return task_of_rows(self.data.train, self.method)

    def draw(self, lines: Sequence[JsonObject], file: Path, title: str) -> None:
        draw(lines, file, title=title)


def job_of(
    method: Method, data: DataSet, model: str, out: Path, settings: Settings,
    command: str | None, watch: Watch,
) -> RowsJob:  # fmt: skip
    made_with = ingredients(model, out, settings, watch)
    config = made(method, settings, out)
    settings = replace(settings, overrides=without_repeated(settings.overrides))
    eyes = eyes_of(made_with["source"], made_with["tokenizer"], made_with["dialect"])
    if eyes is not None and settings.packing:
        raise ConfigError("--packing is not for a model that sees images. Leave it away.")
    return RowsJob(
        method=method, out=out, config=settings, config=config, world=World.here(),
        watch=watch, command=command, data=data, eyes=eyes, **made_with,
    )  # fmt: skip


def ingredients(model: str, out: Path, config: Shared, watch: Watch) -> dict[str, Any]:
    """Which model it is, and how it is spoken to."""
    source = find(model, say=watch.say)
    refuse_inside(out, source)
    tokenizer = tokenizer_of(source)
    # Whether rows need tools that it does not know is seen on the rows.
    dialect = any_dialect(tokenizer, chat_template_kwargs=config.chat_template_kwargs)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return {"source": source, "tokenizer": tokenizer, "dialect": dialect}
