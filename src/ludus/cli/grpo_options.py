"""Options that only `ludus train grpo` has, and the config that they build."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.train_options import ExperimentTracker, shared_config_fields
from ludus.errors import ConfigError

if TYPE_CHECKING:
    from ludus.train.grpo.grpo_config import GRPOConfig


class ZeroVarianceMode(StrEnum):
    SKIP = "skip"
    RESAMPLE = "resample"
    KEEP = "keep"


class CreditMode(StrEnum):
    EPISODE = "episode"
    TURN = "turn"


class RolloutLoop(StrEnum):
    FAST = "fast"
    TRL = "trl"


class KeepModel(StrEnum):
    BEST = "best"
    LAST = "last"


class VLLMMode(StrEnum):
    COLOCATE = "colocate"
    SERVER = "server"


Steps = Annotated[int, typer.Option(help="Number of training steps.")]
Groups = Annotated[int, typer.Option(help="Groups (tasks) per training step, over all processes.")]
GroupSize = Annotated[int, typer.Option(help="Episodes per group (TRL's num_generations).")]
MaxEpisodeTokens = Annotated[
    int, typer.Option(help="Maximum number of tokens per episode, over all its replies.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of tokens per reply, reasoning included.",
        show_default="what is left of --max-episode-tokens",
    ),
]
Temperature = Annotated[float, typer.Option(help="Sampling temperature.")]
TopP = Annotated[float, typer.Option(help="Nucleus sampling: probability mass to keep.")]
TopK = Annotated[
    int | None,
    typer.Option(help="Top-k sampling: number of tokens to keep.", show_default="all"),
]
Beta = Annotated[float | None, typer.Option(help="KL penalty coefficient.", show_default="0")]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Most episodes per forward pass.", show_default="as many as fit; 8 on a CPU"),
]
ZeroVarianceGroups = Annotated[
    ZeroVarianceMode,
    typer.Option(help="What to do with groups whose episodes all have the same reward."),
]
MaxResamples = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of resamplings per step, with --zero-variance-groups resample.",
        show_default="2",
    ),
]
TargetKL = Annotated[
    float,
    typer.Option(
        help="Target KL divergence of a training step, per episode in nats; the learning rate is "
        "scaled to reach it. 0: no scaling."
    ),
]
ImportanceCorrection = Annotated[
    bool,
    typer.Option(
        help="Importance-sampling correction for the mismatch of the probabilities of decoder and "
        "trainer."
    ),
]
Credit = Annotated[
    CreditMode,
    typer.Option(
        help="Advantage of a reply: that of its episode, or its own, from the rewards and the "
        "progress that follow it."
    ),
]
GaeLambda = Annotated[
    float | None,
    typer.Option(
        help="Lambda of generalized advantage estimation, from 0 to 1, with --credit turn.",
        show_default="0.9",
    ),
]
Rollouts = Annotated[
    RolloutLoop, typer.Option(help="Rollout loop: that of Ludus (fast) or of TRL (trl).")
]
VLLM = Annotated[
    VLLMMode | None,
    typer.Option(help="Generate with vLLM, in TRL's mode.", show_default="the built-in engine"),
]
RewardFuncs = Annotated[
    list[str] | None,
    typer.Option(
        "--reward-func",
        metavar="MODULE:FUNCTION[=WEIGHT]",
        help="Reward function or rubric in addition to the environment's reward; repeatable. "
        "environment=0.5 sets the weight of that reward.",
    ),
]
CurriculumAxes = Annotated[
    list[str] | None,
    typer.Option(
        "--curriculum",
        metavar="NAME=LOW..HIGH",
        help="Task argument to draw where 20-80 % of attempts succeed; repeatable. "
        "NAME=VALUE,VALUE for a list, variant=NAME,NAME for variants of ENV.",
    ),
]
EvalEvery = Annotated[
    int | None,
    typer.Option(
        help="Steps between evaluations on held-out tasks; 0: never.",
        show_default="so that a tenth of all episodes are held-out",
    ),
]
EvalEpisodes = Annotated[
    int | None,
    typer.Option(help="Episodes per evaluation on held-out tasks.", show_default="64"),
]
Keep = Annotated[
    KeepModel,
    typer.Option(help="Which model to save: the best on held-out tasks, or the last one."),
]
MaxRollbacks = Annotated[
    int,
    typer.Option(
        help="Maximum number of rollbacks to the best model, at half the learning rate, before a "
        "run that gets worse is stopped."
    ),
]
EarlyStop = Annotated[bool, typer.Option("--early-stop", help="Stop when the reward is saturated.")]
AllowUnseeded = Annotated[
    bool,
    typer.Option(
        "--allow-unseeded",
        help="Train on environments that ignore their seed, although the episodes of a group then "
        "have different tasks.",
    ),
]
Seed = Annotated[int, typer.Option(help="Random seed: tasks and sampling.")]


def build_grpo_config(
    *,
    checkpoint_every: str,
    overrides: list[str] | None,
    report_to: ExperimentTracker | None,
    reward_funcs: Sequence[str] | None,
    curriculum: Sequence[str] | None,
    zero_variance_groups: ZeroVarianceMode,
    max_resamples: int | None,
    credit: CreditMode,
    gae_lambda: float | None,
    eval_every: int | None,
    eval_episodes: int | None,
    keep: KeepModel,
    rollouts: RolloutLoop,
    vllm_mode: VLLMMode | None,
    system_prompt: str | None,
    **fields: Any,
) -> GRPOConfig:
    """Build the config of GRPO, without options that have no effect; `fields` are its others."""
    from ludus.train.grpo.grpo_config import GRPOConfig

    if max_resamples is not None:
        if zero_variance_groups is not ZeroVarianceMode.RESAMPLE:
            raise ConfigError("--max-resamples needs --zero-variance-groups resample.")
        fields["max_resamples"] = max_resamples
    if gae_lambda is not None:
        if credit is not CreditMode.TURN:
            raise ConfigError("--gae-lambda needs --credit turn.")
        fields["gae_lambda"] = gae_lambda
    if eval_episodes is not None:
        if eval_every == 0:
            raise ConfigError("--eval-episodes has no effect with --eval-every 0.")
        fields["eval_episodes"] = eval_episodes
    if system_prompt is not None:
        fields["system_prompt"] = system_prompt or None
    return GRPOConfig(
        **shared_config_fields(checkpoint_every, overrides, report_to),
        reward_funcs=tuple(reward_funcs or ()),
        curriculum=tuple(curriculum or ()),
        zero_variance_groups=zero_variance_groups.value,
        credit=credit.value,
        eval_every=eval_every,
        keep=keep.value,
        rollouts=rollouts.value,
        vllm_mode=vllm_mode.value if vllm_mode is not None else None,
        **fields,
    )
