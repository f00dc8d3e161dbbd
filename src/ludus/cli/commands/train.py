"""`ludus train`: SFT and DPO on rows of a data set, GRPO and tutors in an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ludus.cli import common_options as common
from ludus.cli import train_options as options
from ludus.cli.command_line import typed_command
from ludus.cli.commands.train_grpo import grpo
from ludus.cli.commands.train_tutor import tutor
from ludus.cli.common_options import parse_template_options
from ludus.cli.display.train_metrics import TrainMetrics
from ludus.cli.display.train_summary import TrainSummary
from ludus.cli.flag_names import FlagCommand
from ludus.cli.train_command import TrainPush, run_training
from ludus.cli.train_options import build_lora_config, build_train_config

if TYPE_CHECKING:
    from ludus.train import TrainConfig, TrainProgress, TrainResult

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train a model with SFT, DPO or GRPO, or in rounds with a tutor.",
)


@app.command(cls=FlagCommand)
def sft(
    data: options.Data,
    model: options.Model,
    out: options.OutputDir,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    gradient_accumulation_steps: options.GradientAccumulationSteps = 1,
    learning_rate: options.LearningRate = None,
    max_length: options.MaxLength = None,
    drop_untrainable: options.DropUntrainable = False,
    thinking: common.Thinking = None,
    chat_template_kwargs: common.ChatTemplateKwargs = None,
    packing: options.Packing = False,
    lora: options.Lora = False,
    lora_rank: options.LoraRank = None,
    lora_alpha: options.LoraAlpha = None,
    lora_dropout: options.LoraDropout = None,
    lora_target_modules: options.LoraTargetModules = None,
    merge_adapter: options.MergeAdapter = None,
    gradient_checkpointing: options.GradientCheckpointing = False,
    precision: options.Precision = None,
    device: options.Device = None,
    compile: options.Compile = None,
    checkpoint_every: options.CheckpointEvery = "10m",
    seed: options.Seed = 0,
    overrides: options.Overrides = None,
    report_to: options.ReportTo = None,
    overwrite: options.Overwrite = False,
    push_to_hub: options.PushToHub = None,
    private: common.Private = False,
    as_json: common.JsonLines = False,
) -> None:
    """Supervised fine-tuning on conversations.

    Only assistant messages bear the loss. Run the same command again to resume a stopped training.

    Examples:

    ludus train sft data/wordle --model smollm2 -o models/wordle

    ludus train sft data/wordle -m Qwen/Qwen3-0.6B --lora --set warmup_steps=20 -o models/wordle
    """
    config = build_train_config(
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        learning_rate=learning_rate,
        max_length=max_length,
        drop_untrainable=drop_untrainable,
        chat_template_kwargs=parse_template_options(thinking, chat_template_kwargs),
        packing=packing,
        lora=build_lora_config(
            lora,
            rank=lora_rank,
            alpha=lora_alpha,
            dropout=lora_dropout,
            target_modules=lora_target_modules,
            merge_adapter=merge_adapter,
        ),
        gradient_checkpointing=gradient_checkpointing,
        precision=precision,
        device=device,
        compile=compile,
        checkpoint_every=checkpoint_every,
        seed=seed,
        overrides=overrides,
        report_to=report_to,
    )
    push = TrainPush.from_options(push_to_hub, private=private)
    _train_on_rows("sft", data, model, out, config, overwrite=overwrite, push=push, as_json=as_json)


@app.command(cls=FlagCommand)
def dpo(
    data: options.Data,
    model: options.Model,
    out: options.OutputDir,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    gradient_accumulation_steps: options.GradientAccumulationSteps = 1,
    learning_rate: options.LearningRate = None,
    max_length: options.MaxLength = None,
    drop_untrainable: options.DropUntrainable = False,
    thinking: common.Thinking = None,
    chat_template_kwargs: common.ChatTemplateKwargs = None,
    beta: options.Beta = None,
    lora: options.Lora = False,
    lora_rank: options.LoraRank = None,
    lora_alpha: options.LoraAlpha = None,
    lora_dropout: options.LoraDropout = None,
    lora_target_modules: options.LoraTargetModules = None,
    merge_adapter: options.MergeAdapter = None,
    gradient_checkpointing: options.GradientCheckpointing = False,
    precision: options.Precision = None,
    device: options.Device = None,
    checkpoint_every: options.CheckpointEvery = "10m",
    seed: options.Seed = 0,
    overrides: options.Overrides = None,
    report_to: options.ReportTo = None,
    overwrite: options.Overwrite = False,
    push_to_hub: options.PushToHub = None,
    private: common.Private = False,
    as_json: common.JsonLines = False,
) -> None:
    """Direct preference optimization on pairs of episodes.

    The rows are pairs from `ludus curate --to dpo`. Run the same command again to resume a stopped
    training.

    Examples:

    ludus train dpo data/pairs --model models/wordle -o models/wordle-dpo

    ludus train dpo data/pairs -m models/wordle --lora --beta 0.05 -o models/wordle-dpo
    """
    config = build_train_config(
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        learning_rate=learning_rate,
        max_length=max_length,
        drop_untrainable=drop_untrainable,
        chat_template_kwargs=parse_template_options(thinking, chat_template_kwargs),
        beta=beta,
        lora=build_lora_config(
            lora,
            rank=lora_rank,
            alpha=lora_alpha,
            dropout=lora_dropout,
            target_modules=lora_target_modules,
            merge_adapter=merge_adapter,
        ),
        gradient_checkpointing=gradient_checkpointing,
        precision=precision,
        device=device,
        checkpoint_every=checkpoint_every,
        seed=seed,
        overrides=overrides,
        report_to=report_to,
    )
    push = TrainPush.from_options(push_to_hub, private=private)
    _train_on_rows("dpo", data, model, out, config, overwrite=overwrite, push=push, as_json=as_json)


app.command(cls=FlagCommand)(grpo)
app.command(cls=FlagCommand)(tutor)


def _train_on_rows(
    method: Literal["sft", "dpo"],
    data: Path,
    model: str,
    out: Path,
    config: TrainConfig,
    *,
    overwrite: bool,
    push: TrainPush | None,
    as_json: bool,
) -> None:
    def stage(progress: TrainProgress) -> TrainResult:
        from ludus.train import offline

        train = offline.sft if method == "sft" else offline.dpo
        return train(
            data, model, out, config,
            overwrite=overwrite, command=typed_command(), progress=progress,
        )  # fmt: skip

    run_training(
        stage,
        out,
        metrics=TrainMetrics(),
        summary=TrainSummary(model),
        overwrite=overwrite,
        push=push,
        as_json=as_json,
    )
