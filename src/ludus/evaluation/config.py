"""Config of an evaluation, and of its candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ludus.data.config import check_field_types
from ludus.errors import ConfigError
from ludus.options import Option, expand_path, parse_assignments
from ludus.rollout.config import RolloutConfig


@dataclass(frozen=True, kw_only=True)
class EvalConfig(RolloutConfig):
    """Which tasks the candidates play, and how their episodes are judged."""

    num_episodes: Annotated[
        int | None, Option("Basics", short="n", default="50, or all of --tasks")
    ] = None
    """Number of episodes per candidate."""
    seed: Annotated[int, Option("Tasks", advanced=True)] = 999
    """Seed that selects the tasks; by default not the one of the training data."""
    sweep: Annotated[Sequence[str], Option("Tasks", metavar="NAME=LOW..HIGH|NAME=VALUE,VALUE")] = ()
    """Argument of reset to vary, such as max_digits=2..6, with `num_episodes` at each value;
    repeatable for combinations."""
    max_tokens: Annotated[int | None, Option("Limits")] = 512
    """Maximum number of tokens sampled per reply, reasoning included."""
    solved_at: Annotated[float, Option("Output", hidden=True)] = 1.0
    """The reward from which a task counts as solved."""
    pass_k: Annotated[
        Sequence[int], Option("Output", hidden=True, default="--group-size, if it is above 1")
    ] = ()
    """Also report pass@k, for at most `group_size` attempts; repeatable."""
    exclude_tasks_in: Annotated[Path | None, Option("Tasks", metavar="DATA", parse=expand_path)] = (
        None
    )
    """Data set or run; tasks whose question is in it are excluded from all metrics."""

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

    llm_endpoint: Annotated[str | None, Option("Agent", advanced=True, metavar="URL")] = None
    """OpenAI-compatible server, for `openai:` candidates: vLLM, Ollama, llama.cpp."""
    temperature: Annotated[
        float | None, Option("Sampling", default="0 for local models, else the model's default")
    ] = None
    """Sampling temperature."""
    device: Annotated[str | None, Option("Agent", hidden=True, default="the fastest available")] = (
        None
    )
    """Device of local models: cuda, cuda:1, mps or cpu."""
    dtype: Annotated[str | None, Option("Agent", hidden=True)] = None
    """Dtype of local models: bfloat16, float16 or float32."""
    concurrency: Annotated[int, Option("Limits", advanced=True)] = 64
    """Maximum number of concurrent calls to the model."""
    chat_template_kwargs: Annotated[
        Mapping[str, Any],
        Option("Agent", hidden=True, metavar="KEY=VALUE|JSON", combine=parse_assignments),
    ] = field(default_factory=dict)
    """Arguments of the chat template, for local models and for `openai:` models behind
    `llm_endpoint`."""

    def __post_init__(self) -> None:
        check_field_types(self)

    def template_kwargs_for(self, provider: str) -> Mapping[str, Any]:
        """The template arguments of the config, for a provider whose models take them."""
        has_template = provider == "hf" or (provider == "openai" and self.llm_endpoint is not None)
        return self.chat_template_kwargs if has_template else {}
