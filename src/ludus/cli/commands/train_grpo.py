"""`ludus train grpo`: an environment -> a better model, by trial and reward."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli import common_options as given
from ludus.cli import grpo_options as own
from ludus.cli import train_options as options
from ludus.cli.command_line import typed_command
from ludus.cli.common_options import task_arguments, template_kwargs
from ludus.cli.display.grpo_progress import GRPOMetrics
from ludus.cli.display.grpo_summary import GRPOSummary
from ludus.cli.train_command import HubPush, run_training
from ludus.cli.train_options import build_lora_config

if TYPE_CHECKING:
    from ludus.train import TrainProgress, TrainResult


def grpo(
    environment: given.Env,
    model: options.Model,
    out: options.OutputDir,
    base_url: given.BaseUrl = None,
    token: given.Token = None,
    steps: own.Steps = 150,
    groups: own.Groups = 16,
    group_size: own.GroupSize = 4,
    max_episode_tokens: own.MaxEpisodeTokens = 256,
    max_tokens: own.MaxTokens = None,
    max_turns: given.MaxTurns = 20,
    temperature: own.Temperature = 1.0,
    top_p: own.TopP = 1.0,
    top_k: own.TopK = None,
    beta: own.Beta = None,
    learning_rate: options.LearningRate = None,
    batch_size: own.BatchSize = None,
    equal: own.ZeroVarianceGroups = own.ZeroVarianceMode.SKIP,
    resamples: own.Resamples = None,
    reward: own.Rewards = None,
    dataset_config: given.DatasetConfig = None,
    task: given.Task = None,
    system_prompt: given.SystemPrompt = None,
    thinking: given.Thinking = None,
    chat_template_kwargs: given.ChatTemplateKwargs = None,
    eval_every: own.EvalEvery = None,
    eval_episodes: own.EvalEpisodes = None,
    early_stop: own.EarlyStop = False,
    allow_unseeded: own.AllowUnseeded = False,
    rollouts: own.RolloutLoopOption = own.RolloutLoop.FAST,
    vllm: own.VLLMOption = None,
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
    seed: own.Seed = 0,
    set: options.Set = None,
    report_to: options.ReportTo = None,
    overwrite: options.Overwrite = False,
    push_to_hub: options.PushToHub = None,
    private: options.Private = False,
    as_json: options.AsJson = False,
) -> None:
    """Teach a model what went best of several attempts, by GRPO.

    Attempts at one task are compared with each other. Each of them is kept, and `ludus show OUT`
    shows it. The same command goes on where it was stopped, and with more --steps where it ended.

    Examples:

    ludus train grpo wordle --model models/wordle -o models/wordle-grpo

    ludus train grpo reasoning_gym:chain_sum -m smollm2 --eval-every 25 --early-stop -o models/sums

    ludus train grpo wordle=0.7,catch=0.3 -m Qwen/Qwen3-0.6B --lora -o models/games
    """
    settings = own.build_grpo_config(
        steps=steps,
        groups=groups,
        group_size=group_size,
        max_episode_tokens=max_episode_tokens,
        max_tokens=max_tokens,
        max_turns=max_turns,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        beta=beta,
        learning_rate=learning_rate,
        batch_size=batch_size,
        equal=equal,
        resamples=resamples,
        rewards=reward,
        task=task_arguments(task, dataset_config),
        system_prompt=system_prompt,
        chat_template_kwargs=template_kwargs(thinking, chat_template_kwargs),
        eval_every=eval_every,
        eval_episodes=eval_episodes,
        early_stop=early_stop,
        allow_unseeded=allow_unseeded,
        rollouts=rollouts,
        vllm=vllm,
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

    def stage(watch: TrainProgress) -> TrainResult:
        from ludus.train.grpo import pipeline

        return pipeline.grpo(
            environment, model, out, settings,
            base_url=base_url, token=token, overwrite=overwrite, command=typed_command(), progress=watch,
        )  # fmt: skip

    asked = {
        "--base-url": base_url,
        "--dataset-config": dataset_config,
        "--task": task,
        "--system-prompt": system_prompt,
    }
    run_training(
        stage,
        out,
        metrics=GRPOMetrics(lambda: _read_log(out)),
        summary=GRPOSummary(model, (environment, *_given_options(asked))),
        overwrite=overwrite,
        push=push,
        as_json=as_json,
    )


def _read_log(out: Path) -> list[dict[str, object]]:
    """What a run that goes on has in its log."""
    from ludus.data.training_log import read_log

    return list(read_log(out.expanduser()))


def _given_options(asked: dict[str, str | None]) -> list[str]:
    """Those options that were given, as they are typed."""
    return [
        word for option, value in asked.items() if value is not None for word in (option, value)
    ]
