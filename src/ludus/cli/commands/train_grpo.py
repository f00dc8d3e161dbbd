"""`ludus train grpo`: train a model in an environment with GRPO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ludus.cli import common_options as common
from ludus.cli import grpo_options
from ludus.cli import train_options as options
from ludus.cli.command_line import typed_command
from ludus.cli.common_options import parse_task_options, parse_template_options
from ludus.cli.display.grpo_metrics import GRPOMetrics
from ludus.cli.display.grpo_summary import GRPOSummary
from ludus.cli.train_command import TrainPush, run_training
from ludus.cli.train_options import build_lora_config

if TYPE_CHECKING:
    from ludus.train import TrainProgress, TrainResult


def grpo(
    env: common.Env,
    model: options.Model,
    out: options.OutputDir,
    base_url: common.BaseUrl = None,
    token: common.Token = None,
    steps: grpo_options.Steps = 150,
    groups: grpo_options.Groups = 16,
    group_size: grpo_options.GroupSize = 4,
    max_episode_tokens: grpo_options.MaxEpisodeTokens = 256,
    max_tokens: grpo_options.MaxTokens = None,
    max_turns: common.MaxTurns = None,
    temperature: grpo_options.Temperature = 1.0,
    top_p: grpo_options.TopP = 1.0,
    top_k: grpo_options.TopK = None,
    beta: grpo_options.Beta = None,
    learning_rate: options.LearningRate = None,
    batch_size: grpo_options.BatchSize = None,
    zero_variance_groups: grpo_options.ZeroVarianceGroups = grpo_options.ZeroVarianceMode.SKIP,
    max_resamples: grpo_options.MaxResamples = None,
    target_kl: grpo_options.TargetKL = 0.05,
    importance_correction: grpo_options.ImportanceCorrection = True,
    credit: grpo_options.Credit = grpo_options.CreditMode.EPISODE,
    gae_lambda: grpo_options.GaeLambda = None,
    reward_funcs: grpo_options.RewardFuncs = None,
    dataset_config: common.DatasetConfig = None,
    task: common.Task = None,
    curriculum: grpo_options.CurriculumAxes = None,
    system_prompt: common.SystemPrompt = None,
    thinking: common.Thinking = None,
    chat_template_kwargs: common.ChatTemplateKwargs = None,
    eval_every: grpo_options.EvalEvery = None,
    eval_episodes: grpo_options.EvalEpisodes = None,
    keep: grpo_options.Keep = grpo_options.KeepModel.BEST,
    max_rollbacks: grpo_options.MaxRollbacks = 2,
    early_stop: grpo_options.EarlyStop = False,
    allow_unseeded: grpo_options.AllowUnseeded = False,
    rollouts: grpo_options.Rollouts = grpo_options.RolloutLoop.FAST,
    vllm_mode: grpo_options.VLLM = None,
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
    seed: grpo_options.Seed = 0,
    overrides: options.Overrides = None,
    report_to: options.ReportTo = None,
    overwrite: options.Overwrite = False,
    push_to_hub: options.PushToHub = None,
    private: common.Private = False,
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

    ludus train grpo wordle=0.7,catch=0.3 -m Qwen/Qwen3-0.6B --lora -o models/games
    """
    config = grpo_options.build_grpo_config(
        base_url=base_url,
        token=token,
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
        zero_variance_groups=zero_variance_groups,
        max_resamples=max_resamples,
        target_kl=target_kl,
        importance_correction=importance_correction,
        credit=credit,
        gae_lambda=gae_lambda,
        reward_funcs=reward_funcs,
        task=parse_task_options(task, dataset_config),
        curriculum=curriculum,
        system_prompt=system_prompt,
        chat_template_kwargs=parse_template_options(thinking, chat_template_kwargs),
        eval_every=eval_every,
        eval_episodes=eval_episodes,
        keep=keep,
        max_rollbacks=max_rollbacks,
        early_stop=early_stop,
        allow_unseeded=allow_unseeded,
        rollouts=rollouts,
        vllm_mode=vllm_mode,
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

    def stage(progress: TrainProgress) -> TrainResult:
        from ludus.train.grpo import pipeline

        return pipeline.grpo(
            env, model, out, config,
            overwrite=overwrite, command=typed_command(), progress=progress,
        )  # fmt: skip

    def read_past_log() -> list[dict[str, Any]]:
        from ludus.data.training_log import read_log

        return list(read_log(out.expanduser()))

    # Options of `ludus eval` that give it the same tasks.
    eval_options: dict[str, Sequence[str | None]] = {
        "--base-url": [base_url],
        "--dataset-config": [dataset_config],
        "--task": task or [],
        "--system-prompt": [system_prompt],
    }
    eval_args = [env]
    for flag, values in eval_options.items():
        for value in values:
            eval_args += [flag, value] if value is not None else []
    run_training(
        stage,
        out,
        metrics=GRPOMetrics(read_past_log),
        # With a curriculum over variants, the record has the environments.
        summary=GRPOSummary(model, None if _has_variants(curriculum) else tuple(eval_args)),
        overwrite=overwrite,
        push=push,
        as_json=as_json,
    )


def _has_variants(curriculum: list[str] | None) -> bool:
    return any(axis.partition("=")[0].strip() == "variant" for axis in curriculum or ())
