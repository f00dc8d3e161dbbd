"""A GRPO run from beginning to end: begun, gone on with, or done already.

Reads top to bottom. What each part does is the business of the module that it is in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ludus.data import training_log
from ludus.environment.mixture import Mixture, parse_mixture
from ludus.errors import OutOfMemory, RunError
from ludus.policy.hf_logging import require
from ludus.policy.load import Policy, eos_token_ids, load_model
from ludus.policy.preflight import check_model
from ludus.policy.vision.trainer_inputs import allow_batches_without_images
from ludus.rollout.plan import Plan
from ludus.rollout.progress import PhaseProgress
from ludus.train.config import resolve_learning_rate
from ludus.train.grpo.episode_log import EpisodeLog
from ludus.train.grpo.group_rollouts import GroupRollouts
from ludus.train.grpo.groups import SeedCheck
from ludus.train.grpo.grpo_callbacks import GRPOCallbacks
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.grpo_context import GRPOContext, build_context
from ludus.train.grpo.held_out import HeldOutEvaluator
from ludus.train.grpo.policy_agent import TrainingPolicyAgent
from ludus.train.grpo.rewards import build_reward_funcs
from ludus.train.grpo.rollout_worker import RolloutWorker
from ludus.train.grpo.task_dataset import build_task_dataset
from ludus.train.grpo.trainer import build_trainer
from ludus.train.grpo.trl_grpo_config import MANAGED_FIELDS
from ludus.train.grpo.vllm_engine import VllmEngine
from ludus.train.output import checkpoints, training_folder
from ludus.train.output.finalize import finalize, finished_result, is_finished
from ludus.train.output.result import TrainResult
from ludus.train.overrides import check_override_keys
from ludus.train.process_env import training_process
from ludus.train.progress import NoProgress, TrainProgress
from ludus.train.resume import PreviousRun, find_previous_run, run_trainer, start_record
from ludus.train.speed.acceleration import skip_unlabelled_logits

Standing = checkpoints.CheckpointState
_DEFAULT_CONFIG = GRPOConfig()


def grpo(
    environment: str | Mixture,
    model: str,
    out: str | Path,
    config: GRPOConfig = _DEFAULT_CONFIG,
    *,
    base_url: str | None = None,
    token: str | None = None,
    overwrite: bool = False,
    command: str | None = None,
    progress: TrainProgress | None = None,
) -> TrainResult:
    """Train, or go on where a run with the same settings stood."""
    out, watch = Path(out).expanduser(), progress or NoProgress()
    training_folder.check_output_dir(out)
    mix = parse_mixture(environment) if isinstance(environment, str) else environment
    if base_url is None:
        mix.check_installed()
    check_model(model, device=config.device, dtype=config.precision)
    check_override_keys("grpo", config.overrides, MANAGED_FIELDS)
    extra = ("peft",) if config.lora else ()
    watch.phase(PhaseProgress("Loading PyTorch and TRL", in_log=True))
    require("Training", "trl", "datasets", "accelerate", "filelock", "matplotlib.figure", *extra)
    with training_process(out):
        job = build_context(
            mix, model, out, config, base_url=base_url, token=token, command=command,
            watch=watch,
        )  # fmt: skip
        with training_folder.lock_folder(out, job.distributed):
            previous = find_previous_run(job, overwrite=overwrite)
            if previous.finished:
                return finished_result(job, previous.record)
            with training_folder.discard_if_unstarted(out, job.distributed):
                return _run(job, previous, overwrite=overwrite)


def _run(job: GRPOContext, previous: PreviousRun, *, overwrite: bool) -> TrainResult:
    job.progress.phase(PhaseProgress(f"Checking {job.subject}", in_log=True))
    with _stage(job) as stage, EpisodeLog(job.out / training_log.EPISODES_FILE) as episodes:
        with job.distributed.raise_on_all_ranks():
            trainer, pace = _trainer(job, stage, episodes, previous.state, overwrite)
        with skip_unlabelled_logits():
            _trained(job, stage, trainer, previous.checkpoint)
        if is_finished(trainer, pace):
            _keep_last(job, trainer)
        return finalize(job, trainer, pace)


class PipelineCallbacks(GRPOCallbacks):
    """Starts the record of a GRPO run."""

    def __init__(
        self,
        job: GRPOContext,
        stage: RolloutWorker,
        episodes: EpisodeLog,
        standing: Standing | None,
        *,
        overwrite: bool,
        **more: Any,
    ) -> None:
        super().__init__(
            job.out, job.progress, job.distributed, checkpoint_every=job.config.checkpoint_every,
            resume_state=standing, **more,
        )  # fmt: skip
        self._job, self._stage, self._episodes, self._overwrite = job, stage, episodes, overwrite

    def start_run(self) -> None:
        state = self.resume_state
        trained_on = self._job.environment_record(self._stage.names)
        start_record(self._job, trained_on, state, overwrite=self._overwrite)
        self._episodes.open(state.episodes if state else 0)


def _stage(job: GRPOContext) -> RolloutWorker:
    settings = job.config
    return RolloutWorker(
        job.environments, limits=settings.limits, system_prompt=settings.system_prompt,
        task=settings.task, scored=job.rewards.score, base_url=job.base_url, token=job.token,
        say=job.progress.say, phase=job.progress.phase, stopping=lambda: job.progress.stopping,
    )  # fmt: skip


def _trainer(
    job: GRPOContext,
    stage: RolloutWorker,
    episodes: EpisodeLog,
    standing: Standing | None,
    overwrite: bool,
) -> tuple[Any, GRPOCallbacks]:
    settings, config = job.config, job.trl_config
    plan = stage.plan(job.run_id, seed=settings.seed, group_size=settings.group_size)
    stage.rehearse(plan)
    job.progress.phase(PhaseProgress(f"Loading {job.model_ref.name}", in_log=True))
    model = load_model(job.model_ref.name, device="cpu", dtype="float32", allow_vision=True)
    if job.vision is not None:
        allow_batches_without_images(model)
    weights = model.num_parameters()
    config.learning_rate = resolve_learning_rate(settings, "grpo", weights, groups=settings.groups)
    pace = _pace(job, stage, episodes, standing, overwrite)
    made = {
        "model": model, "config": config, "tokenizer": job.tokenizer, "settings": settings,
        "pace": pace, "eyes": job.vision,
    }  # fmt: skip
    if settings.rollouts == "trl":
        trainer = _by_trl(job, episodes, made)
    else:
        trainer = _by_ludus(job, stage, plan, episodes, made)
    _introduce(job, stage, trainer)
    return trainer, pace


def _introduce(job: GRPOContext, stage: RolloutWorker, trainer: Any) -> None:
    """Have the model play on the stage, where it does, and say how."""
    by = "TRL's own loop"
    if job.config.rollouts == "fast" or job.config.eval_every:
        learner = stage.agent = _learner(job, trainer)
        # Before the trainer wraps the model's forward pass, which an engine looks at.
        stage.run(learner.ensure_loaded())
        by = learner.engine_description if job.config.rollouts == "fast" else by
    job.progress.say(f"Rollouts by {by}")
    if job.config.equal != "keep" and (why := _keeps_all(job)):
        job.progress.say(f"Groups with equal rewards are kept: {why}, rows are not left out")


def _keeps_all(job: GRPOContext) -> str | None:
    if job.vision is not None:
        return "with pictures"
    return "with --beta" if job.trl_config.beta else None


def _by_ludus(
    job: GRPOContext, stage: RolloutWorker, plan: Plan, episodes: EpisodeLog, made: dict[str, Any]
) -> Any:
    settings, weights = job.config, job.rewards.weights(stage.names)
    count = settings.steps * settings.groups
    rollouts = GroupRollouts(
        stage, plan, settings, job.rewards, job.distributed, episodes.append,
        SeedCheck(settings.allow_unseeded, job.progress.say),
    )  # fmt: skip
    job.trl_config.reward_weights = list(weights.values())
    return build_trainer(
        **made, rollouts=rollouts, rollout_func=rollouts, train_dataset=build_task_dataset(count),
        reward_funcs=build_reward_funcs(weights),
    )  # fmt: skip


def _by_trl(job: GRPOContext, episodes: EpisodeLog, made: dict[str, Any]) -> Any:
    from ludus.train.trl_compat.trl_rollouts import build_trl_rollouts

    who: dict[str, Any] = {
        "provider": "hf", "model": job.model_ref.name, "temperature": job.config.temperature,
    }  # fmt: skip
    if job.chat_format.chat_template_kwargs:
        who["chat_template_kwargs"] = dict(job.chat_format.chat_template_kwargs)
    rolled = build_trl_rollouts(
        job.environments, job.config, rewards=job.rewards, distributed=job.distributed, on_episodes=episodes.append,
        agent=who, run_id=job.run_id, base_url=job.base_url, token=job.token,
        warn=job.progress.say,
    )  # fmt: skip
    job.trl_config.reward_weights = list(rolled.reward_weights.values())
    trainer = build_trainer(**made, rollouts=None, **rolled.trainer_kwargs)
    rolled.attach(trainer)
    return trainer


def _pace(
    job: GRPOContext,
    stage: RolloutWorker,
    episodes: EpisodeLog,
    standing: Standing | None,
    overwrite: bool,
) -> GRPOCallbacks:
    settings = job.config
    held_out = HeldOutEvaluator(
        stage, job.run_id, settings.seed, settings.eval_episodes, job.distributed
    )
    return PipelineCallbacks(
        job, stage, episodes, standing, overwrite=overwrite, num_iterations=job.trl_config.num_iterations, evaluate_held_out=held_out,
        eval_every=settings.eval_every, early_stop=settings.early_stop,
    )  # fmt: skip


def _learner(job: GRPOContext, trainer: Any) -> TrainingPolicyAgent:
    """Whoever plays is the very model that is trained."""
    model = trainer.model
    dialect = replace(
        job.chat_format, stop_token_ids=job.chat_format.stop_token_ids | eos_token_ids(model)
    )
    policy = Policy(job.model_ref.name, model, job.tokenizer, dialect, vision=job.vision)
    engine = VllmEngine(trainer) if job.config.vllm else None
    rows = job.config.episodes // job.distributed.world_size
    return TrainingPolicyAgent(policy, job.config, engine=engine, max_batch=rows)


def _trained(job: GRPOContext, stage: RolloutWorker, trainer: Any, checkpoint: Path | None) -> None:
    """What the environments' servers do wrong must not cost what was learned until then."""
    try:
        run_trainer(trainer, checkpoint)
    except RunError as error:
        step = trainer.state.global_step
        # Several processes keep one together, and only one of them may have run out of memory.
        alone = isinstance(error, OutOfMemory) and job.distributed.world_size > 1
        due = (
            trainer.first_step_started
            and step
            and step % job.trl_config.num_iterations == 0
            and not alone
        )
        kept = _is_kept(job, trainer) if due else True
        if stage.stop_reason is None or not kept:
            raise
        trainer.callback.stop_reason = stage.stop_reason


def _is_kept(job: GRPOContext, trainer: Any) -> bool:
    """Make a checkpoint, unless this step has one. Where that fails, it is said, and not raised:
    why training ends is what the user has to know."""
    step, there = trainer.state.global_step, checkpoints.latest_checkpoint(job.out)
    standing = checkpoints.read_state(there) if there is not None else None
    if standing is not None and standing.step == step:
        return True
    try:
        trainer._save_checkpoint(trainer.model, None)
    except RunError as error:
        job.progress.say(str(error))
        if job.distributed.is_main:
            checkpoints.remove_incomplete(job.out)
        return False
    return True


def _keep_last(job: GRPOContext, trainer: Any) -> None:
    """Make the checkpoint from which a finished run can be extended.

    Within steps that learn from the same episodes there can be none.
    """
    if trainer.state.global_step % job.trl_config.num_iterations == 0:
        _is_kept(job, trainer)
