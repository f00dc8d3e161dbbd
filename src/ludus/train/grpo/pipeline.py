"""GRPO: a model plays tasks in groups and is trained on which of its attempts did better."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

from ludus.data.training_log import EPISODES_FILE
from ludus.environment.mixture import Mixture, parse_mixture
from ludus.environment.task_buckets import build_buckets, parse_axes, select_environments
from ludus.errors import OutOfMemory, RunError, TrainingDiverged
from ludus.policy.device import limited_gpu_memory
from ludus.policy.hf_loading import require_transformers
from ludus.policy.model_ref import check_model
from ludus.policy.vision.training_images import drop_empty_image_inputs
from ludus.rollout.progress import PhaseProgress
from ludus.scoring.reward_functions import import_reward_functions
from ludus.train.acceleration import skip_unlabelled_logits
from ludus.train.context import GRPOContext, build_grpo_context, training_process
from ludus.train.grpo.advantages import SeedCheck
from ludus.train.grpo.curriculum import Curriculum
from ludus.train.grpo.group_rollouts import GroupRollouts, RolloutLog
from ludus.train.grpo.grpo_callbacks import GRPOCallback
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.held_out import HeldOutEvaluator
from ludus.train.grpo.policy_agent import build_policy_agent, check_vllm_installed
from ludus.train.grpo.rollout_worker import RolloutWorker
from ludus.train.output import checkpoints
from ludus.train.output.finalize import finalize, finished_result, is_finished
from ludus.train.output.training_folder import (
    check_output_dir,
    discard_if_unstarted,
    lock_folder,
)
from ludus.train.result import NoProgress, TrainProgress, TrainResult
from ludus.train.resume import PreviousRun, find_previous_run
from ludus.train.trainable_model import load_trainable_model
from ludus.train.trl_config import resolve_learning_rate
from ludus.train.trl_trainers import run_trainer

_DEFAULT_CONFIG = GRPOConfig()


def grpo(
    env: str | Mixture,
    model: str | Path,
    out: str | Path,
    config: GRPOConfig = _DEFAULT_CONFIG,
    *,
    overwrite: bool = False,
    command: str | None = None,
    progress: TrainProgress | None = None,
) -> TrainResult:
    """Train a model on the tasks of an environment by GRPO, and write it to `out`.

    Args:
        env: A spec, a server's address or a mixture of them, as for `ludus.collect`.
        model: A folder, a name on the Hub, or the name of a model that Ludus knows.
        out: The output folder. An interrupted run with the same config is resumed from its latest
            checkpoint; a finished one is left alone, or extended if `config.steps` is larger now.
        overwrite: Replace a run with another config, instead of raising.
        command: The command line, for the record and the model card.
        progress: Receives the progress of training, and can stop it.
    """
    started_at = monotonic()
    model, out, progress = str(model), Path(out).expanduser(), progress or NoProgress()
    check_output_dir(out)
    environments = parse_mixture(env) if isinstance(env, str) else env
    axes = parse_axes(config.curriculum, option="curriculum")
    environments = select_environments(environments, axes, option="curriculum")
    if config.base_url is None:
        environments.check_installed()
    buckets = build_buckets(environments, axes, config.task, option="curriculum")
    check_model(model, device=config.device, dtype=config.precision)
    if config.vllm_mode:
        check_vllm_installed()
    rewards = import_reward_functions(config.reward_funcs)
    progress.phase(PhaseProgress("Loading PyTorch and TRL", in_log=True))
    # Also packages that are needed only at the end, such as for the plot.
    extra = ("peft",) if config.lora else ()
    require_transformers("Training", "trl", "datasets", "accelerate", "matplotlib.figure", *extra)

    config = config.for_device()
    with training_process(out):
        context = build_grpo_context(
            environments,
            model,
            out,
            config,
            rewards,
            command=command,
            progress=progress,
            started_at=started_at,
            buckets=buckets,
        )
        with lock_folder(out, context.distributed):
            previous = find_previous_run(context, overwrite=overwrite)
            if previous.finished:
                return finished_result(context, previous.record)
            with discard_if_unstarted(out, context.distributed):
                return _train(context, previous, overwrite=overwrite)


def _train(context: GRPOContext, previous: PreviousRun, *, overwrite: bool) -> TrainResult:
    from ludus.train.grpo.trainer import build_trainer

    config, progress = context.config, context.progress
    progress.phase(PhaseProgress(f"Checking {context.subject}", in_log=True))
    worker = RolloutWorker(
        context.environments, config.rollout_config, score_episode=context.rewards.score,
        say=progress.say, on_phase=progress.phase, stop_requested=lambda: progress.stopping,
    )  # fmt: skip
    memory = limited_gpu_memory(context.trl_config.device, config.gpu_memory_utilization)
    with memory, worker, RolloutLog(context.out / EPISODES_FILE) as episodes:
        with context.distributed.raise_on_all_ranks():
            curriculum: Curriculum | None = None
            if context.buckets:
                curriculum = Curriculum(
                    context.buckets, groups=config.groups, seed=config.seed,
                    counts_environment=context.rewards.environment_weight != 0,
                    state=previous.state.curriculum if previous.state else None,
                )  # fmt: skip
                worker.preflight_buckets(context.buckets, seed=config.tasks_seed)
            else:
                worker.preflight(seed=config.tasks_seed)
            worker.find_splits(context.buckets)
            plan = worker.plan(
                context.run_id, seed=config.tasks_seed, group_size=config.group_size,
                choose=curriculum.choose if curriculum else None,
            )  # fmt: skip
            progress.phase(PhaseProgress(f"Loading {context.model_ref.name}", in_log=True))
            model = load_trainable_model(context.model_ref)
            if context.vision is not None:
                drop_empty_image_inputs(model)
            context.trl_config.learning_rate = resolve_learning_rate(
                config, "grpo", model.num_parameters(), groups=config.groups
            )
            held_out = HeldOutEvaluator(
                worker, context.run_id, config.seed, config.eval_episodes, context.distributed,
                context.buckets,
            )  # fmt: skip
            callback = GRPOCallback(
                context, episodes, worker.names, held_out,
                curriculum=curriculum, resume_state=previous.state, overwrite=overwrite,
            )  # fmt: skip
            rollouts = GroupRollouts(
                worker, plan, config, context.rewards, context.distributed, episodes.append,
                SeedCheck(config.allow_unseeded, progress.say), curriculum,
            )  # fmt: skip
            context.rewards.weights(worker.names)  # Raises if two rewards have one name.
            trainer = build_trainer(context, model, callback, rollouts)
            worker.agent = agent = build_policy_agent(context, trainer)
            # Start it before training: engines inspect the forward method and the weights, which
            # the trainer wraps and FSDP divides later.
            trainer.model.to(context.trl_config.device)
            worker.run(agent.ensure_loaded())
            progress.say(f"Rollouts by {agent.engine_description}")
            if config.zero_variance_groups != "keep" and context.trl_config.beta:
                progress.say("Zero-variance groups are kept: a penalty has a gradient for them")
        with skip_unlabelled_logits():
            _run_trainer(context, worker, trainer, previous.checkpoint)
        if is_finished(trainer, callback):
            # The checkpoint from which a finished run can be extended.
            _save_checkpoint(context, trainer)
        callback.conclude(trainer, playable=worker.stop_reason is None)
        return finalize(context, trainer, callback)


def _run_trainer(
    context: GRPOContext, worker: RolloutWorker, trainer: Any, checkpoint: Path | None
) -> None:
    """Train; if an error ends the run, first save a checkpoint of the steps that were made.

    A request to stop while a server is unreachable is not an error.
    """
    try:
        run_trainer(trainer, checkpoint)
    except TrainingDiverged:
        # The weights that led there are not worth a checkpoint, which may replace a good one.
        raise
    except RunError as error:
        # All ranks save a checkpoint together, and only one of them may have run out of memory.
        one_rank = isinstance(error, OutOfMemory) and context.distributed.world_size > 1
        due = trainer.first_step_started and trainer.state.global_step and not one_rank
        saved = _save_checkpoint(context, trainer) if due else True
        if worker.stop_reason is None or not saved:
            raise
        trainer.callback.stop_reason = worker.stop_reason


def _save_checkpoint(context: GRPOContext, trainer: Any) -> bool:
    """Save a checkpoint, unless this step has one; returns whether that succeeded.

    Errors are reported and not raised: the error that ended training is more important.
    """
    step = trainer.state.global_step
    latest = checkpoints.latest_checkpoint(context.out)
    state = checkpoints.read_state(latest) if latest is not None else None
    if state is not None and state.step == step:
        return True
    try:
        trainer._save_checkpoint(trainer.model, None)
    except RunError as error:
        context.progress.say(str(error))
        return False
    return True
