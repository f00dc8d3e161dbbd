"""A GRPO run from beginning to end: begun, gone on with, or done already.

Reads top to bottom. What each part does is the business of the module that it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ludus.environment.mix import Mixture, parse_mixture
from ludus.errors import OutOfMemory, RunError
from ludus.policy.eyes.tensors import allow_batches_without_images
from ludus.policy.load import Policy, eos_token_ids, load_model
from ludus.policy.preflight import check_model
from ludus.policy.quiet import require
from ludus.rollout.plan import Plan
from ludus.rollout.progress import PhaseProgress
from ludus.train import checkpoints, folder, record
from ludus.train.continuation import carry_out, trained
from ludus.train.ending import ended, is_finished
from ludus.train.grpo.config import REFUSED
from ludus.train.grpo.episodes import Episodes
from ludus.train.grpo.groups import SeedCheck
from ludus.train.grpo.held_out import HeldOut
from ludus.train.grpo.job import GrpoJob, job_of
from ludus.train.grpo.learner import Learner
from ludus.train.grpo.pace import GrpoPace
from ludus.train.grpo.rewards import columns
from ludus.train.grpo.rollout import Rollouts
from ludus.train.grpo.settings import GrpoSettings
from ludus.train.grpo.stage import Stage
from ludus.train.grpo.tasks import tasks
from ludus.train.grpo.trainer import trainer_of
from ludus.train.grpo.vllm import VllmEngine
from ludus.train.outcome import Outcome
from ludus.train.overrides import check_keys
from ludus.train.settings import learning_rate_of
from ludus.train.speed import scoring_where_there_is_loss
from ludus.train.surroundings import surroundings
from ludus.train.training import Training
from ludus.train.watch import Unwatched, Watch

Begin = Callable[[], None]
Standing = checkpoints.Standing


def train(
    environment: str | Mixture,
    model: str,
    out: str | Path,
    config: GrpoSettings,
    *,
    base_url: str | None,
    token: str | None,
    overwrite: bool,
    command: str | None,
    watch: Watch | None,
) -> Outcome:
    """Train, or go on where a run with the same settings stood."""
    out, watch = Path(out).expanduser(), watch or Unwatched()
    folder.check(out)
    mix = parse_mixture(environment) if isinstance(environment, str) else environment
    if base_url is None:
        mix.check_installed()
    check_model(model, device=config.device, dtype=config.precision)
    check_keys("grpo", config.overrides, REFUSED)
    extra = ("peft",) if config.lora else ()
    watch.phase(PhaseProgress("Loading PyTorch and TRL", in_log=True))
    require("Training", "trl", "datasets", "accelerate", "filelock", "matplotlib.figure", *extra)
    with surroundings(out), ExitStack() as stack:
        job = job_of(
            mix, model, out, config, base_url=base_url, token=token, command=command,
            watch=watch,
        )  # fmt: skip
        with job.world.together():
            # One process holds it for all that train together.
            if job.world.main:
                stack.enter_context(folder.held(out))
        return carry_out(job, partial(_run, job, overwrite=overwrite), overwrite=overwrite)


def _run(job: GrpoJob, there: Training | None, *, overwrite: bool) -> Outcome:
    checkpoint = checkpoints.newest(job.out) if there is not None else None
    standing = checkpoints.standing_of(checkpoint) if checkpoint is not None else None
    job.watch.phase(PhaseProgress(f"Checking {job.subject}", in_log=True))
    with _stage(job) as stage, Episodes(job.out / folder.EPISODES) as episodes:

        def begin() -> None:
            if overwrite:
                folder.clear(job.out)
            _begin(job, stage, standing)
            episodes.open(standing.episodes if standing else 0)

        with job.world.together():
            trainer, pace = _trainer(job, stage, episodes, standing, begin)
        with scoring_where_there_is_loss():
            _trained(job, stage, trainer, checkpoint)
        if is_finished(trainer, pace):
            _keep_last(job, trainer)
        return ended(job, trainer, pace)


def _stage(job: GrpoJob) -> Stage:
    settings = job.config
    return Stage(
        job.environments, limits=settings.limits, system_prompt=settings.system_prompt,
        task=settings.task, scored=job.rewards.scored, base_url=job.base_url, token=job.token,
        say=job.watch.say, phase=job.watch.phase, stopping=lambda: job.watch.stopping,
    )  # fmt: skip


def _trainer(
    job: GrpoJob, stage: Stage, episodes: Episodes, standing: Standing | None, begin: Begin
) -> tuple[Any, GrpoPace]:
    settings, config = job.config, job.config
    plan = stage.plan(job.run_id, seed=settings.seed, group_size=settings.group_size)
    stage.rehearse(plan)
    job.watch.phase(PhaseProgress(f"Loading {job.source.name}", in_log=True))
    model = load_model(job.source.name, device="cpu", dtype="float32", allow_vision=True)
    if job.vision is not None:
        allow_batches_without_images(model)
    weights = model.num_parameters()
    config.learning_rate = learning_rate_of(settings, "grpo", weights, groups=settings.groups)
    pace = _pace(job, stage, standing, begin)
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


def _introduce(job: GrpoJob, stage: Stage, trainer: Any) -> None:
    """Have the model play on the stage, where it does, and say how."""
    by = "TRL's own loop"
    if job.config.rollouts == "fast" or job.config.eval_every:
        learner = stage.agent = _learner(job, trainer)
        # Before the trainer wraps the model's forward pass, which an engine looks at.
        stage.run(learner.ensure_loaded())
        by = learner.engine if job.config.rollouts == "fast" else by
    job.watch.say(f"Rollouts by {by}")
    if job.config.equal != "keep" and (why := _keeps_all(job)):
        job.watch.say(f"Groups with equal rewards are kept: {why}, rows are not left out")


def _keeps_all(job: GrpoJob) -> str | None:
    if job.vision is not None:
        return "with pictures"
    return "with --beta" if job.config.beta else None


def _by_ludus(
    job: GrpoJob, stage: Stage, plan: Plan, episodes: Episodes, made: dict[str, Any]
) -> Any:
    settings, weights = job.config, job.rewards.weights(stage.names)
    count = settings.steps * settings.groups
    rollouts = Rollouts(
        stage, plan, settings, job.rewards, job.world, episodes.keep,
        SeedCheck(settings.allow_unseeded, job.watch.say),
    )  # fmt: skip
    job.config.reward_weights = list(weights.values())
    return trainer_of(
        **made, rollouts=rollouts, rollout_func=rollouts, train_dataset=tasks(count),
        reward_funcs=columns(weights),
    )  # fmt: skip


def _by_trl(job: GrpoJob, episodes: Episodes, made: dict[str, Any]) -> Any:
    from ludus.train.trl.run import trl_parts

    who: dict[str, Any] = {
        "provider": "hf", "model": job.source.name, "temperature": job.config.temperature,
    }  # fmt: skip
    if job.dialect.chat_template_kwargs:
        who["chat_template_kwargs"] = dict(job.dialect.chat_template_kwargs)
    rolled = trl_parts(
        job.environments, job.config, rewards=job.rewards, world=job.world, keep=episodes.keep,
        agent=who, run_id=job.run_id, base_url=job.base_url, token=job.token,
        warn=job.watch.say,
    )  # fmt: skip
    job.config.reward_weights = list(rolled.weights.values())
    trainer = trainer_of(**made, rollouts=None, **rolled.parts)
    rolled.attach(trainer)
    return trainer


def _pace(job: GrpoJob, stage: Stage, standing: Standing | None, begin: Begin) -> GrpoPace:
    settings = job.config
    held_out = HeldOut(stage, job.run_id, settings.seed, settings.eval_episodes, job.world)
    return GrpoPace(
        job.out, job.watch, job.world, every=settings.checkpoint_every, standing=standing,
        begin=begin, period=job.config.num_iterations, try_out=held_out,
        eval_every=settings.eval_every, early_stop=settings.early_stop,
    )  # fmt: skip


def _learner(job: GrpoJob, trainer: Any) -> Learner:
    """Whoever plays is the very model that is trained."""
    model = trainer.model
    dialect = replace(job.dialect, stops=job.dialect.stop_token_ids | eos_token_ids(model))
    policy = Policy(job.source.name, model, job.tokenizer, dialect, vision=job.vision)
    engine = VllmEngine(trainer) if job.config.vllm else None
    rows = job.config.episodes // job.world.size
    return Learner(policy, job.config, engine=engine, max_batch=rows)


def _trained(job: GrpoJob, stage: Stage, trainer: Any, checkpoint: Path | None) -> None:
    """What the environments' servers do wrong must not cost what was learned until then."""
    try:
        trained(trainer, checkpoint)
    except RunError as error:
        step = trainer.state.global_step
        # Several processes keep one together, and only one of them may have run out of memory.
        alone = isinstance(error, OutOfMemory) and job.world.size > 1
        due = trainer.stepped and step and step % job.config.num_iterations == 0 and not alone
        kept = _is_kept(job, trainer) if due else True
        if stage.left is None or not kept:
            raise
        trainer.pace.stopped = stage.left


def _is_kept(job: GrpoJob, trainer: Any) -> bool:
    """Make a checkpoint, unless this step has one. Where that fails, it is said, and not raised:
    why training ends is what the user has to know."""
    step, there = trainer.state.global_step, checkpoints.newest(job.out)
    standing = checkpoints.standing_of(there) if there is not None else None
    if standing is not None and standing.step == step:
        return True
    try:
        trainer._save_checkpoint(trainer.model, None)
    except RunError as error:
        job.watch.say(str(error))
        if job.world.main:
            checkpoints.sweep(job.out)
        return False
    return True


def _keep_last(job: GrpoJob, trainer: Any) -> None:
    """Make the checkpoint from which a finished run can be extended.

    Within steps that learn from the same episodes there can be none.
    """
    if trainer.state.global_step % job.config.num_iterations == 0:
        _is_kept(job, trainer)


def _begin(job: GrpoJob, stage: Stage, standing: Standing | None) -> None:
    checkpoints.sweep(job.out)
    step = standing.step if standing else None
    about = job.about(job.played(stage.names))
    # The record first: a log without one would be a stranger's.
    record.begin(job.out, about, resumed_from=step)
    # Without a checkpoint everything is done again, also what comes before the first step.
    record.rewind(job.out, -1 if step is None else step)
