"""The options of `ludus train grpo` that no other command has, and what they mean together."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.train_options import ExperimentTracker, shared_config_fields
from ludus.errors import ConfigError

if TYPE_CHECKING:
    from ludus.train.config import Lora
    from ludus.train.grpo.grpo_config import GRPOConfig


class ZeroVarianceMode(StrEnum):
    SKIP = "skip"
    RESAMPLE = "resample"
    KEEP = "keep"


class RolloutLoop(StrEnum):
    FAST = "fast"
    TRL = "trl"


class VLLMMode(StrEnum):
    COLOCATE = "colocate"
    SERVER = "server"


Steps = Annotated[int, typer.Option(help="How often the model is changed.")]
Groups = Annotated[int, typer.Option(help="Tasks of a step, over all processes.")]
GroupSize = Annotated[int, typer.Option(help="Attempts at each task.")]
MaxEpisodeTokens = Annotated[
    int, typer.Option(help="Most tokens in all replies of an episode together.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        help="Most tokens in one reply, thoughts included.",
        show_default="what is left of --max-episode-tokens",
    ),
]
Temperature = Annotated[float, typer.Option(help="How freely replies are sampled.")]
TopP = Annotated[float, typer.Option(help="Only the likeliest tokens that make up this share.")]
TopK = Annotated[
    int | None, typer.Option(help="Only so many of the likeliest tokens.", show_default="all")
]
Beta = Annotated[
    float | None,
    typer.Option(help="How dear it is to move away from the model.", show_default="0"),
]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Episodes learned from at once.", show_default="all of a step; 8 on a CPU"),
]
ZeroVarianceGroups = Annotated[
    ZeroVarianceMode,
    typer.Option("--equal", help="Groups whose attempts are all worth the same."),
]
Resamples = Annotated[
    int | None,
    typer.Option(help="With --equal resample: how often, at the most.", show_default="2"),
]
RolloutLoopOption = Annotated[
    RolloutLoop, typer.Option("--rollouts", help="Who plays: Ludus, or TRL's own loop.")
]
VLLMOption = Annotated[
    VLLMMode | None, typer.Option("--vllm", help="Let vLLM decode.", show_default="Ludus does")
]
Rewards = Annotated[
    list[str] | None,
    typer.Option(
        "--reward",
        metavar="MODULE:FUNCTION[=WEIGHT]",
        help="A reward beside the environment's own; again for each.",
    ),
]
EvalEvery = Annotated[
    int | None,
    typer.Option(help="Steps between two tests on held-out tasks.", show_default="no tests"),
]
EvalEpisodes = Annotated[
    int | None, typer.Option(help="Episodes of such a test.", show_default="64")
]
EarlyStop = Annotated[bool, typer.Option("--early-stop", help="End when nothing is left to learn.")]
AllowUnseeded = Annotated[
    bool,
    typer.Option(
        "--allow-unseeded",
        help="Train also on environments that ignore their seed: attempts at different tasks are "
        "compared.",
    ),
]
Seed = Annotated[int, typer.Option(help="Which tasks, and what is sampled.")]


def build_grpo_config(
    *,
    checkpoint_every: str,
    assignments: list[str] | None,
    report_to: ExperimentTracker | None,
    lora: Lora | None,
    rewards: Sequence[str] | None,
    equal: ZeroVarianceMode,
    resamples: int | None,
    eval_every: int | None,
    eval_episodes: int | None,
    rollouts: RolloutLoop,
    vllm: VLLMMode | None,
    system_prompt: str | None,
    **plain: Any,
) -> GRPOConfig:
    """All options as the trainer's settings; one that would mean nothing is a mistake."""
    from ludus.train.grpo.grpo_config import GRPOConfig

    _require_option(
        "--resamples",
        resamples,
        unless=equal is ZeroVarianceMode.RESAMPLE,
        needs="--equal resample",
    )
    _require_option(
        "--eval-episodes", eval_episodes, unless=eval_every is not None, needs="--eval-every"
    )
    said = {"resamples": resamples, "eval_episodes": eval_episodes}
    given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if system_prompt is not None:
        given["system_prompt"] = system_prompt or None
    return GRPOConfig(
        **shared_config_fields(checkpoint_every, assignments, report_to),
        lora=lora,
        rewards=tuple(rewards or ()),
        equal=equal.value,
        eval_every=eval_every,
        rollouts=rollouts.value,
        vllm=vllm.value if vllm is not None else None,
        **given,
        **plain,
    )


def _require_option(option: str, value: int | None, *, unless: bool, needs: str) -> None:
    if value is not None and not unless:
        raise ConfigError(f"{option} means nothing without {needs}. Add that, or leave it away.")
