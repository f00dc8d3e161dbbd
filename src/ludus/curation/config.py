"""Configuration of `curate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ludus.curation.file_formats import FileFormat, check_format
from ludus.curation.filters import FilterConfig
from ludus.curation.pairs import DEFAULT_MIN_MARGIN, Pairing
from ludus.curation.split import DEFAULT_SIMILARITY
from ludus.curation.training_rows import RowConfig
from ludus.curation.writers import OutputKind
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CurateConfig(FilterConfig, RowConfig):
    """Which episodes to keep, and what to write of them."""

    to: OutputKind = "sft"
    dedupe: bool | None = None
    """Remove exact duplicates, of episodes or of pairs. None: for SFT and DPO; other programs count
    attempts, and get all of them."""
    max_prompt_similarity: float | None = None
    """Remove tasks whose prompt is at least this similar to an earlier task's."""
    max_completion_similarity: float | None = None
    """Remove attempts whose completion is at least this similar to a better attempt's."""
    across_tasks: bool = False
    """Compare completions across tasks, not only within each task."""
    pairs: Pairing = "best"
    min_margin: float = DEFAULT_MIN_MARGIN
    """Minimum reward difference between the sides of a pair."""
    test_size: float | None = None
    """Fraction of the tasks in the test split; None: no split."""
    held_out: tuple[str | Path, ...] = ()
    """Runs or data sets whose tasks, and near duplicates of them, are removed."""
    similarity_threshold: float = DEFAULT_SIMILARITY
    """Prompts at least this similar are near duplicates, for `test_size` and `held_out`."""
    seed: int = 0
    """Seed of the split."""
    format: FileFormat = "jsonl"
    student: str | None = None
    """Model whose tokenizer and chat template measure the rows."""

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
