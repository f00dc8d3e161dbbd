"""`ludus train tutor`: rounds in which a model plays, a tutor corrects it, and it is trained."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ludus.cli import common_options as common
from ludus.cli import train_options as options
from ludus.cli.command_line import typed_command
from ludus.cli.common_options import parse_task_options, parse_template_options
from ludus.cli.display.train_metrics import TrainMetrics
from ludus.cli.display.tutor_summary import TutorSummary
from ludus.cli.train_command import TrainPush, run_training
from ludus.cli.train_options import build_lora_config, build_train_config

if TYPE_CHECKING:
    from ludus.train import TrainProgress, TrainResult


class KeepModel(StrEnum):
    BEST = "best"
    LAST = "last"


def tutor(
    env: common.Env,
    model: options.Model,
    out: options.OutputDir,
    base_url: common.BaseUrl = None,
    token: common.Token = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 3,
    episodes: Annotated[
        int, typer.Option(min=1, help="Episodes per round, of tutor and student together.")
    ] = 500,
    tutor: Annotated[
        str,
        typer.Option(
            metavar="AGENT",
            help="Agent that says what to reply in every state: oracle, openai:MODEL, "
            "anthropic:MODEL, hf:PATH or smollm2.",
        ),
    ] = "oracle",
    tutor_share: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of the first round's episodes that the tutor plays itself; 0 for a model "
            "that can play already.",
        ),
    ] = 1.0,
    tutor_decay: Annotated[
        float,
        typer.Option(min=0, max=1, help="Factor of that share from one round to the next."),
    ] = 0.5,
    explore: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Probability of a random action in the tutor's own episodes."
        ),
    ] = 0.1,
    working: common.Working = False,
    temperature: Annotated[
        float, typer.Option(min=0, help="Sampling temperature of the student.")
    ] = 1.0,
    dataset_config: common.DatasetConfig = None,
    task: common.Task = None,
    system_prompt: common.SystemPrompt = None,
    max_turns: common.MaxTurns = None,
    max_tokens: common.MaxTokens = 512,
    eval_episodes: Annotated[
        int, typer.Option(min=1, help="Held-out tasks that are played after each round.")
    ] = 64,
    solved_at: common.SolvedAt = 1.0,
    keep: Annotated[
        KeepModel,
        typer.Option(help="Model to keep: the best on held-out tasks, or that of the last round."),
    ] = KeepModel.BEST,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    gradient_accumulation_steps: options.GradientAccumulationSteps = 1,
    learning_rate: options.LearningRate = None,
    max_length: options.MaxLength = None,
    thinking: common.Thinking = None,
    chat_template_kwargs: common.ChatTemplateKwargs = None,
    packing: options.Packing = False,
    lora: options.Lora = False,
    lora_rank: options.LoraRank = None,
    lora_alpha: options.LoraAlpha = None,
    lora_dropout: options.LoraDropout = None,
    lora_target_modules: options.LoraTargetModules = None,
    gradient_checkpointing: options.GradientCheckpointing = False,
    precision: options.Precision = None,
    device: options.Device = None,
    compile: options.Compile = None,
    checkpoint_every: options.CheckpointEvery = "10m",
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed: tasks, random actions, order of the rows.")
    ] = 0,
    overrides: options.Overrides = None,
    report_to: options.ReportTo = None,
    overwrite: options.Overwrite = False,
    push_to_hub: options.PushToHub = None,
    private: common.Private = False,
    as_json: common.JsonLines = False,
) -> None:
    """Teach a model an environment with a tutor (DAgger).

    In each round the model plays, the tutor says in every state what it would have done, and the
    model is trained on that by SFT, on the rows of all rounds. Run the same command again to resume
    after Ctrl-C, or with more --rounds to go on.

    Examples:

    ludus train tutor wordle --model smollm2 -o models/wordle

    ludus train tutor catch -m models/catch --tutor-share 0 --rounds 2 -o models/catch-2
    """
    from ludus.policy.agent_factory import agent_from_spec
    from ludus.rollout import SYSTEM_PROMPT
    from ludus.tutoring import TutorConfig

    config = TutorConfig(
        rounds=rounds,
        episodes=episodes,
        tutor=agent_from_spec(tutor),
        tutor_share=tutor_share,
        tutor_decay=tutor_decay,
        explore=explore,
        working=working,
        temperature=temperature,
        task=parse_task_options(task, dataset_config),
        system_prompt=SYSTEM_PROMPT if system_prompt is None else system_prompt or None,
        max_turns=max_turns,
        max_tokens=max_tokens,
        eval_episodes=eval_episodes,
        solved_at=solved_at,
        keep=keep.value,
        seed=seed,
        base_url=base_url,
        token=token,
        train=build_train_config(
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            learning_rate=learning_rate,
            max_length=max_length,
            chat_template_kwargs=parse_template_options(thinking, chat_template_kwargs),
            packing=packing,
            lora=build_lora_config(
                lora,
                rank=lora_rank,
                alpha=lora_alpha,
                dropout=lora_dropout,
                target_modules=lora_target_modules,
                merge_adapter=None,
            ),
            gradient_checkpointing=gradient_checkpointing,
            precision=precision,
            device=device,
            compile=compile,
            checkpoint_every=checkpoint_every,
            seed=seed,
            overrides=overrides,
            report_to=report_to,
        ),
    )
    push = TrainPush.from_options(push_to_hub, private=private)

    def stage(progress: TrainProgress) -> TrainResult:
        from ludus.tutoring import pipeline

        return pipeline.tutor(
            env, model, out, config,
            overwrite=overwrite, command=typed_command(), progress=progress,
        )  # fmt: skip

    run_training(
        stage,
        out,
        metrics=TrainMetrics(),
        summary=TutorSummary(model),
        overwrite=overwrite,
        push=push,
        as_json=as_json,
    )
