"""`ludus train grpo`: train a model in an environment with GRPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ludus.cli import common
from ludus.cli.command_line import typed_command
from ludus.cli.program import command
from ludus.train.grpo.grpo_config import GRPOConfig

if TYPE_CHECKING:
    from ludus.train import TrainProgress, TrainResult


@command
def grpo(
    env: common.Env,
    *,
    model: common.Model,
    out: common.TrainOutput,
    config: GRPOConfig,
    thinking: common.Thinking = None,
    overwrite: common.Overwrite = False,
    push_to_hub: common.Push = None,
    as_json: common.JsonLines = False,
) -> None:
    """Group relative policy optimization on episodes that the model plays.

    The rewards of the episodes of one task are compared with each other. Every episode is kept;
    `ludus show OUT` prints it. Run the same command again to resume a stopped training, or with
    more --steps to extend a finished one.

    Examples:

    ludus train grpo wordle --model models/wordle -o models/wordle-grpo

    ludus train grpo reasoning_gym:chain_sum -m smollm2 --eval-every 25 --early-stop -o models/sums

    ludus train grpo reasoning_gym:chain_sum -m smollm2 --curriculum max_terms=2..5 -o models/sums

    ludus train grpo wordle=0.7,catch=0.3 -m Qwen/Qwen3-0.6B --lora on -o models/games
    """
    from ludus.cli.display.grpo_metrics import GRPOMetrics
    from ludus.cli.display.grpo_summary import GRPOSummary
    from ludus.cli.train_command import run_training

    config = common.with_thinking(config, thinking)

    def stage(progress: TrainProgress) -> TrainResult:
        from ludus.train.grpo import pipeline

        return pipeline.grpo(
            env, model, out, config,
            overwrite=overwrite, command=typed_command(), progress=progress,
        )  # fmt: skip

    def read_past_log() -> list[dict[str, Any]]:
        from ludus.data.training_log import read_log

        return list(read_log(out.expanduser()))

    # With a curriculum over variants, the record has the environments.
    has_variants = any(axis.partition("=")[0].strip() == "variant" for axis in config.curriculum)
    run_training(
        stage,
        out,
        metrics=GRPOMetrics(read_past_log),
        summary=GRPOSummary(model, None if has_variants else _eval_arguments(env, config)),
        overwrite=overwrite,
        push=push_to_hub,
        as_json=as_json,
    )


def _eval_arguments(env: str, config: GRPOConfig) -> tuple[str, ...]:
    """The words with which `ludus eval` plays the same tasks."""
    from ludus.cli.program import to_texts

    words = [env, *(["--base-url", config.base_url] if config.base_url else [])]
    for text in to_texts(config.task) if config.task else ():
        words += ["--task", text]
    if config.system_prompt != GRPOConfig().system_prompt:
        words += ["--system-prompt", config.system_prompt or ""]
    return tuple(words)
