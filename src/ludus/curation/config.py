"""What is wanted of a data set, and what became of every episode that could have been in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from ludus.curation import pairs, split
from ludus.curation.catalog import FilterStep
from ludus.curation.file_formats import FileFormat, check_format
from ludus.curation.filters import FilterConfig
from ludus.curation.token_lengths import TokenLengths
from ludus.curation.training_rows import DEFAULT_ROW_CONFIG, RowConfig
from ludus.curation.writers import OutputKind
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CurateConfig:
    """What is wanted."""

    to: OutputKind = "sft"
    selection: FilterConfig = field(default_factory=FilterConfig)
    form: RowConfig = field(default_factory=RowConfig)
    dedupe: bool = True
    """Leave out episodes that say the same as another one, word for word; of pairs, such pairs."""
    near_prompts: float | None = None
    near_completions: float | None = None
    across_tasks: bool = False
    """Whether a near copy of a completion is one at any task, or at the same."""
    pairing: pairs.Pairing = "best"
    min_margin: float = pairs.DEFAULT_MIN_MARGIN
    test: float | None = None
    """The part of the tasks to test on."""
    held_out: tuple[str | Path, ...] = ()
    likeness: float = split.DEFAULT_SIMILARITY
    seed: int = 0
    """Which tasks are to test on."""
    format: FileFormat = "jsonl"
    student: str | None = None
    """The model that will be trained, to measure rows in its tokens."""

    def __post_init__(self) -> None:
        check_format(self.format, self.row_kind)
        if self.test is not None and not 0 < self.test < 1:
            raise ConfigError(f"--test {self.test} is not between 0 and 1: a part of the tasks.")
        for name, likeness in (
            ("near-prompts", self.near_prompts),
            ("near-completions", self.near_completions),
            ("likeness", self.likeness),
        ):
            if likeness is not None and not 0 < likeness <= 1:
                raise ConfigError(f"--{name} {likeness} is not above 0 and at most 1.")
        if self.form != DEFAULT_ROW_CONFIG and not self.is_for_training:
            raise ConfigError(
                f"--to {self.to} takes episodes as they are: what is left of a "
                "conversation can be chosen for sft and dpo only."
            )
        if self.student is not None and not self.is_for_training:
            raise ConfigError(f"--student is for --to sft and dpo, and not for {self.to}.")
        if self.to != "dpo":
            return
        if self.selection.best_of_group:
            raise ConfigError("--best-of-group leaves one attempt at a task, and a pair needs two.")
        if self.form.last_turn:
            raise ConfigError("--last-turn is for SFT: two attempts part ways at their first turn.")

    @property
    def row_kind(self) -> str:
        """What a row is."""
        return "last turn" if self.to == "sft" and self.form.last_turn else self.to

    @property
    def is_for_training(self) -> bool:
        """Whether a chat template must be able to render what comes out."""
        return self.to in ("sft", "dpo")

    @property
    def needs_contents(self) -> bool:
        return self.dedupe or self.is_for_training


@dataclass(frozen=True, slots=True)
class CurateReport:
    """What became of every episode."""

    episodes: int
    kept: int
    steps: tuple[FilterStep, ...]
    left_out: dict[str, int]
    rows: dict[str, int]
    """By side: `train`, and `test` where there was a split."""
    tasks: dict[str, int]
    families: int = 0
    """How many tasks went to a side along with a near copy of theirs."""
    unreadable: tuple[str, ...] = ()
    """The first of them, as `file:line`."""
    rewards: dict[str, float] = field(default_factory=dict)
    """The least, mean and highest reward of what was kept."""
    lengths: TokenLengths | None = None
    """Of the rows to train on, in the student's tokens."""

    def as_json(self) -> JsonObject:
        return asdict(self)
