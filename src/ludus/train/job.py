"""All that is known of a run before its rows are read and its weights are loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ludus.data.tools import JsonObject
from ludus.errors import ConfigError
from ludus.policy.dialect import ChatFormat, find_chat_format_with_fallback
from ludus.policy.eyes.families import build_vision_processor
from ludus.policy.eyes.sight import VisionProcessor
from ludus.policy.fingerprint import fingerprint
from ludus.policy.source import ModelKind, ModelRef, resolve_model
from ludus.policy.tokenizer import load_tokenizer_from
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
    source: ModelRef
    out: Path
    config: Shared
    config: Any
    tokenizer: Any
    dialect: ChatFormat
    world: World
    watch: Watch
    command: str | None
    vision: VisionProcessor | None
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
        if self.vision is not None:
            self.vision.save(self.out)

    def about(self, trained_on: Mapping[str, Any]) -> dict[str, Any]:
        """As `training.json` has it."""
        return {
            "kind": self.method,
            "command": self.command,
            "model": self.source.name,
            "weights": fingerprint(self.source.name),
            "base": self.source.name if self.source.kind is ModelKind.HUB else None,
            **trained_on,
            "sees": self.vision is not None,
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
    eyes = build_vision_processor(made_with["source"], made_with["tokenizer"], made_with["dialect"])
    if eyes is not None and settings.packing:
        raise ConfigError("--packing is not for a model that sees images. Leave it away.")
    return RowsJob(
        method=method, out=out, config=settings, config=config, world=World.here(),
        watch=watch, command=command, data=data, vision=eyes, **made_with,
    )  # fmt: skip


def ingredients(model: str, out: Path, config: Shared, watch: Watch) -> dict[str, Any]:
    """Which model it is, and how it is spoken to."""
    source = resolve_model(model, notify=watch.say)
    refuse_inside(out, source)
    tokenizer = load_tokenizer_from(source)
    # Whether rows need tools that it does not know is seen on the rows.
    dialect = find_chat_format_with_fallback(
        tokenizer, chat_template_kwargs=config.chat_template_kwargs
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return {"source": source, "tokenizer": tokenizer, "dialect": dialect}
