"""Configuration of `curate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

from ludus.curation.file_formats import FileFormat, check_format
from ludus.curation.filters import FilterConfig
from ludus.curation.pairs import DEFAULT_MIN_MARGIN, Pairing
from ludus.curation.split import DEFAULT_SIMILARITY
from ludus.curation.training_rows import RowConfig
from ludus.curation.writers import OutputKind
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.options import Option


@dataclass(frozen=True, kw_only=True)
class CurateConfig(FilterConfig, RowConfig):
    """Which episodes to keep, and what to write of them."""

    to: Annotated[OutputKind, Option("Basics")] = "sft"
    """What to write: rows for SFT, pairs for DPO, or the files of another tool."""
    dedupe: Annotated[bool | None, Option("Selection", default="for sft and dpo")] = None
    """Remove exact copies, of episodes or of pairs. Other programs count attempts, and get all of
    them."""
    max_prompt_similarity: Annotated[float | None, Option("Selection", hidden=True)] = None
    """Remove tasks whose prompts are at least this similar to an earlier task's: 0.8."""
    max_completion_similarity: Annotated[float | None, Option("Selection", hidden=True)] = None
    """Remove episodes of a task whose completions are this similar to a better one's: 0.9."""
    across_tasks: Annotated[bool, Option("Selection", hidden=True)] = False
    """Compare completions across tasks, not only within each task."""
    pairs: Annotated[Pairing, Option("Rows", advanced=True)] = "best"
    """DPO pairs: best against worst of each task, or all pairs."""
    min_margin: Annotated[float, Option("Rows", advanced=True)] = DEFAULT_MIN_MARGIN
    """Minimum reward difference between the sides of a DPO pair."""
    test_size: Annotated[float | None, Option("Rows")] = None
    """Fraction of the tasks in the test split: 0.1, of 100 tasks 10."""
    held_out: Annotated[tuple[str | Path, ...], Option("Selection", advanced=True)] = ()
    """Run or data set whose tasks, and near copies of them, are removed; repeatable."""
    similarity_threshold: Annotated[float, Option("Selection", hidden=True)] = DEFAULT_SIMILARITY
    """Prompts at least this similar are near copies, for `test_size` and `held_out`."""
    seed: Annotated[int, Option("Rows", hidden=True)] = 0
    """Random seed of the test split."""
    format: Annotated[FileFormat, Option("Rows", advanced=True)] = "jsonl"
    """File format."""
    student: Annotated[str | None, Option("Rows", advanced=True)] = None
    """Model whose tokenizer and chat template measure the length of the rows."""

    def __post_init__(self) -> None:
        FilterConfig.__post_init__(self)
        RowConfig.__post_init__(self)
        if self.dedupe is None:
            object.__setattr__(self, "dedupe", self.is_for_training)
        check_format(self.format, self.row_kind)
        if self.test_size is not None and not 0 < self.test_size < 1:
            raise ConfigError(f"`test_size` must be between 0 and 1, got {self.test_size}.")
        for name in ("max_prompt_similarity", "max_completion_similarity", "similarity_threshold"):
            similarity = getattr(self, name)
            if similarity is not None and not 0 < similarity <= 1:
                raise ConfigError(f"`{name}` must be above 0 and at most 1, got {similarity}.")
        if not self.is_for_training:
            changed = [f.name for f in fields(RowConfig) if getattr(self, f.name) != f.default]
            for name in [*changed, *(["student"] if self.student is not None else [])]:
                raise ConfigError(f"`{name}` requires `to` sft or dpo, got {self.to}.")
        if self.to == "dpo" and self.best_of_group:
            raise ConfigError("`best_of_group` keeps one attempt per task, but a pair needs two.")
        if self.to == "dpo" and self.last_turn:
            raise ConfigError("`last_turn` requires `to` sft, got dpo.")

    @property
    def row_kind(self) -> str:
        """The key of the row's columns in `file_formats.COLUMNS_BY_KIND`."""
        return "last turn" if self.to == "sft" and self.last_turn else self.to

    @property
    def is_for_training(self) -> bool:
        """Whether a chat template must be able to render the rows."""
        return self.to in ("sft", "dpo")

    @property
    def needs_contents(self) -> bool:
        """Whether messages must be read to filter episodes."""
        return bool(self.dedupe) or self.is_for_training

    def as_json(self) -> JsonObject:
        return {**asdict(self), "held_out": [str(path) for path in self.held_out]}
