"""Config of an evaluation, and of its candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

from ludus.data.config_types import check_field_types
from ludus.errors import ConfigError
from ludus.rollout.config import RolloutConfig


@dataclass(frozen=True, kw_only=True)
class EvalConfig(RolloutConfig):
    """Which tasks the candidates play, and how their episodes are judged."""

    seed: int = 999
    """Selects the tasks; by default other ones than those of `CollectConfig`."""
    solved_at: float = 1.0
    """The reward from which a task counts as solved."""
    pass_k: Sequence[int] = ()
    """Numbers of attempts for pass@k, at most `group_size`; by default `group_size` itself."""
    exclude_tasks_in: str | Path | None = None
    """A data set or a run; tasks whose question is in it are excluded from all metrics."""

    default_num_episodes: ClassVar[int] = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isfinite(self.solved_at):
            raise ConfigError(f"`solved_at` must be a finite number, got {self.solved_at}.")
        for k in self.pass_k:
            if not 1 <= k <= self.group_size:
                raise ConfigError(
                    f"`pass_k` must be from 1 to `group_size`, the number of attempts at each "
                    f"task, got {k} with `group_size` {self.group_size}."
                )

    @property
    def shown_pass_k(self) -> tuple[int, ...]:
        """The numbers of attempts for which pass@k is computed; pass@1 is the accuracy."""
        default = (self.group_size,) if self.group_size > 1 else ()
        return tuple(sorted(set(self.pass_k))) or default


@dataclass(frozen=True, slots=True)
class CandidateConfig:
    """Options shared by all candidates; each applies only to the kinds that it makes sense for."""

    llm_endpoint: str | None = None
    """URL of a server with OpenAI's chat API, for `openai:` candidates."""
    temperature: float | None = None
    """None: 0 for local models, the provider's default for others."""
    device: str | None = None
    dtype: str | None = None
    concurrency: int = 64
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """For local models, and for `openai:` models behind `llm_endpoint`."""

    def __post_init__(self) -> None:
        check_field_types(self)

    def template_kwargs_for(self, provider: str) -> Mapping[str, Any]:
        """The template arguments of the config, for a provider whose models take them."""
        has_template = provider == "hf" or (provider == "openai" and self.llm_endpoint is not None)
        return self.chat_template_kwargs if has_template else {}
