"""`ludus train`: rows -> a better model by SFT or DPO, or an environment -> one by GRPO."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ludus.cli import common_options as given
from ludus.cli import train_options as options
from ludus.cli.command_line import typed_command
from ludus.cli.commands.train_grpo import grpo
from ludus.cli.common_options import template_kwargs
from ludus.cli.display.sft_progress import TrainMetrics
from ludus.cli.display.sft_summary import TrainSummary
from ludus.cli.train_command import HubPush, run_training
from ludus.cli.train_options import build_lora_config, build_train_config

if TYPE_CHECKING:
    from ludus.train import TrainConfig, TrainProgress, TrainResult

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train a model: imitation (sft), preferences (dpo), or trial and reward (grpo).",
)


@app.command()
def sft(
    data: options.Data,
    model: options.Model,
    out: options.OutputDir,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    accumulate: options.Accumulate = 1,
    learning_rate: options.LearningRate = None,
    max_length: options.MaxLength = None,
    drop: options.Drop = False,
    thinking: given.Thinking = None,
    chat_template_kwargs: given.ChatTemplateKwargs = None,
    packing: options.Packing = False,
    lora: options.Lora = False,
    lora_rank: options.LoraRank = None,
    lora_alpha: options.LoraAlpha = None,
    lora_dropout: options.LoraDropout = None,
    lora_targets: options.LoraTargets = None,
    merge: options.Merge = None,
    gradient_checkpointing: options.GradientCheckpointing = False,
    precision: options.Precision = None,
    device: options.Device = None,
    compile: options.Compile = None,
    checkpoint_every: options.CheckpointEvery = "10m",
    seed: options.Seed = 0,
    set: options.Set = None,
    report_to: options.ReportTo = None,
    overwrite: options.Overwrite = False,
    push_to_hub: options.PushToHub = None,
    private: options.Private = False,
    as_json: options.AsJson = False,
) -> None:
    """Teach a model to act as in the rows, by supervised fine-tuning.

    Only what the assistant said is learned. The same command goes on where it was stopped.

    Examples:

    ludus train sft data/wordle --model smollm2 -o models/wordle

    ludus train sft data/wordle -m Qwen/Qwen3-0.6B --lora --set warmup_steps=20 -o models/wordle
    """
    settings = build_train_config(
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        gradient_accumulation_steps=accumulate,
        learning_rate=learning_rate,
        max_length=max_length,
        drop_untrainable=drop,
        chat_template_kwargs=template_kwargs(thinking, chat_template_kwargs),
        packing=packing,
        lora=build_lora_config(
            lora,
            rank=lora_rank,
            alpha=lora_alpha,
            dropout=lora_dropout,
            targets=lora_targets,
            merge=merge,
        ),
        gradient_checkpointing=gradient_checkpointing,
        precision=precision,
        device=device,
        compile=compile,
        checkpoint_every=checkpoint_every,
        seed=seed,
        assignments=set,
        report_to=report_to,
    )
    push = HubPush.from_options(push_to_hub, private=private)
    _train_on_rows(
        "sft", data, model, out, settings, overwrite=overwrite, push=push, as_json=as_json
    )


@app.command()
def dpo(
    data: options.Data,
    model: options.Model,
    out: options.OutputDir,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    accumulate: options.Accumulate = 1,
    learning_rate: options.LearningRate = None,
    max_length: options.MaxLength = None,
    drop: options.Drop = False,
    thinking: given.Thinking = None,
    chat_template_kwargs: given.ChatTemplateKwargs = None,
    beta: options.Beta = None,
    lora: options.Lora = False,
    lora_rank: options.LoraRank = None,
    lora_alpha: options.LoraAlpha = None,
    lora_dropout: options.LoraDropout = None,
    lora_targets: options.LoraTargets = None,
    merge: options.Merge = None,
    gradient_checkpointing: options.GradientCheckpointing = False,
    precision: options.Precision = None,
    device: options.Device = None,
    checkpoint_every: options.CheckpointEvery = "10m",
    seed: options.Seed = 0,
    set: options.Set = None,
    report_to: options.ReportTo = None,
    overwrite: options.Overwrite = False,
    push_to_hub: options.PushToHub = None,
    private: options.Private = False,
    as_json: options.AsJson = False,
) -> None:
    """Teach a model to prefer the better of two attempts, by DPO.

    The rows are pairs, as `ludus curate --to dpo` writes them. The same command goes on where it
    was stopped.

    Examples:

    ludus train dpo data/pairs --model models/wordle -o models/wordle-dpo

    ludus train dpo data/pairs -m models/wordle --lora --beta 0.05 -o models/wordle-dpo
    """
    settings = build_train_config(
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        gradient_accumulation_steps=accumulate,
        learning_rate=learning_rate,
        max_length=max_length,
        drop_untrainable=drop,
        chat_template_kwargs=template_kwargs(thinking, chat_template_kwargs),
        beta=beta,
        lora=build_lora_config(
            lora,
            rank=lora_rank,
            alpha=lora_alpha,
            dropout=lora_dropout,
            targets=lora_targets,
            merge=merge,
        ),
        gradient_checkpointing=gradient_checkpointing,
        precision=precision,
        device=device,
        checkpoint_every=checkpoint_every,
        seed=seed,
        assignments=set,
        report_to=report_to,
    )
    push = HubPush.from_options(push_to_hub, private=private)
    _train_on_rows(
        "dpo", data, model, out, settings, overwrite=overwrite, push=push, as_json=as_json
    )


app.command()(grpo)


def _train_on_rows(
    kind: Literal["sft", "dpo"],
    data: Path,
    model: str,
    out: Path,
    settings: TrainConfig,
    *,
    overwrite: bool,
    push: HubPush | None,
    as_json: bool,
) -> None:
    from ludus.train import offline

    method = offline.sft if kind == "sft" else offline.dpo

    def stage(watch: TrainProgress) -> TrainResult:
        return method(
            data, model, out, settings, overwrite=overwrite, command=typed_command(), progress=watch
        )

    run_training(
        stage,
        out,
        metrics=TrainMetrics(),
        summary=TrainSummary(model),
        overwrite=overwrite,
        push=push,
        as_json=as_json,
    )
