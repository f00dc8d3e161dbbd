"""A training run from beginning to end, whichever the method: begun, gone on with, or done already.

Reads top to bottom. What each part does is the business of the module that it is in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from ludus.policy.load import load_model
from ludus.policy.preflight import check_model
from ludus.policy.quiet import require
from ludus.rollout.progress import PhaseProgress
from ludus.train import checkpoints, folder, record, supply
from ludus.train.configs import complete
from ludus.train.continuation import carry_out, trained
from ludus.train.ending import ended
from ludus.train.job import RowsJob, job_of
from ludus.train.marks import Marked
from ludus.train.outcome import Outcome
from ludus.train.overrides import check_keys
from ludus.train.pace import Pace
from ludus.train.rows import open_data
from ludus.train.settings import Method, Settings, learning_rate_of, settled
from ludus.train.speed import hasten, scoring_where_there_is_loss
from ludus.train.supply import Supply
from ludus.train.surroundings import surroundings
from ludus.train.tokens import Maker
from ludus.train.trainers import trainer_of
from ludus.train.training import Data, Training
from ludus.train.watch import Unwatched, Watch
from ludus.train.world import World


def train(
    method: Method,
    data: str | Path,
    model: str,
    out: str | Path,
    config: Settings,
    *,
    overwrite: bool,
    command: str | None,
    watch: Watch | None,
) -> Outcome:
    """Train, or go on where a run with the same settings stood."""
    out, watch = Path(out).expanduser(), watch or Unwatched()
    config = settled(config, method)
    folder.check(out)
    found = open_data(data)
    check_model(model, device=config.device, dtype=config.precision)
    check_keys(method, config.overrides)
    watch.phase(PhaseProgress("Loading PyTorch and TRL", in_log=True))
    _require(config)
    with surroundings(out), ExitStack() as stack:
        job = job_of(method, found, model, out, config, command, watch)
        with job.world.together():
            # One process holds it for all that train together.
            if job.world.main:
                stack.enter_context(folder.held(out))
        return carry_out(job, partial(_run, job, overwrite=overwrite), overwrite=overwrite)


def _require(settings: Settings) -> None:
    """All that is needed up to the picture at the end: it is too late to miss it then."""
    extra = ("peft",) if settings.lora else ()
    require("Training", "trl", "datasets", "accelerate", "filelock", "matplotlib.figure", *extra)


def _run(job: RowsJob, there: Training | None, *, overwrite: bool) -> Outcome:
    checkpoint = checkpoints.newest(job.out) if there is not None else None
    standing = checkpoints.standing_of(checkpoint) if checkpoint is not None else None
    with job.world.together():
        model = _supplied(job)
    fed = supply.read_supply(job.tokens)

    def begin() -> None:
        if overwrite:
            folder.clear(job.out)
        _begin(job, fed, standing)

    with scoring_where_there_is_loss():
        with job.world.together():
            trainer, pace = _trainer(job, model, fed, standing, begin)
        trained(trainer, checkpoint)
    return ended(job, trainer, pace)


def _supplied(job: RowsJob) -> Any:
    """The model; the first process lays out for all what it is fed."""
    draft = _drafted(job) if job.world.main else None
    job.watch.phase(PhaseProgress(f"Loading {job.source.name}", in_log=True))
    model = load_model(job.source.name, device="cpu", dtype="float32", allow_vision=True)
    if draft is not None:
        fed = supply.supply(
            draft, job.data, job.method, job.config, job.source.name,
            context=_context(model), to=job.tokens, image=job.vision.image_token_id if job.vision else None,
        )  # fmt: skip
        if fed.cut:
            job.watch.say(
                f"{fed.cut:,} of {fed.rows:,} rows are longer than {fed.max_length:,} tokens; what "
                "lies behind is not learned (--max-length)"
            )
    return model


def _drafted(job: RowsJob) -> supply.Draft:
    progress = PhaseProgress(f"Tokenizing {job.data.name}", unit="rows", in_log=True)
    job.watch.phase(progress)
    maker = Maker(job.tokenizer, job.dialect.template, job.method, job.vision)
    return supply.draft(job.data, maker, job.tokens, progress)


def _context(model: Any) -> int | None:
    """How many tokens the model can read, if it says so."""
    found = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _trainer(
    job: RowsJob, model: Any, fed: Supply, standing: checkpoints.Standing | None,
    begin: Callable[[], None],
) -> tuple[Any, Pace]:  # fmt: skip
    settings, config = job.config, job.config
    rows, test = supply.train_rows(job.tokens), supply.test_rows(job.tokens)
    rate = learning_rate_of(settings, job.method, model.num_parameters())
    steps = _steps(config, len(rows), job.world)
    complete(
        config, settings, learning_rate=rate, max_length=fed.max_length, steps=steps,
        test=test is not None,
    )  # fmt: skip
    pace = Pace(
        job.out, job.watch, job.world, every=settings.checkpoint_every, standing=standing,
        begin=begin,
    )  # fmt: skip
    if job.method == "dpo" and config.precompute_ref_log_probs:
        phase = f"Computing the reference log-probabilities of {len(rows):,} pairs"
        job.watch.phase(PhaseProgress(phase, in_log=True))
    trainer = trainer_of(
        job.method, model=model, config=config, tokenizer=job.tokenizer, train=rows, test=test,
        config=settings, pace=pace, reference=_reference(job), vision=job.vision,
    )  # fmt: skip
    trainer.marked = Marked.of(supply.marked_rows(job.tokens), job.method)
    if job.method == "sft" and job.vision is None:
        hasten(trainer, settings, job.world, job.watch.say)
    elif settings.compile:
        job.watch.say("--compile does nothing here: it is for models that read only text.")
    return trainer, pace


def _reference(job: RowsJob) -> Any:
    """The base beside the model, where it is asked anew for every batch.

    Under FSDP beforehand too: there TRL would look for it by a name that it may not have.
    """
    if job.method == "sft" or job.config.lora:
        return None
    sharded = job.config.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "false") == "true"
    if job.config.precompute_ref_log_probs and not sharded:
        return None
    return load_model(job.source.name, device="cpu", dtype="float32", allow_vision=True)


def _steps(config: Any, rows: int, world: World) -> int:
    if (asked := int(config.max_steps)) > 0:
        return asked
    batches = ceil(rows / (config.per_device_train_batch_size * world.size))
    steps: float = ceil(batches / config.gradient_accumulation_steps) * config.num_train_epochs
    return ceil(steps)


def _begin(job: RowsJob, fed: Supply, standing: checkpoints.Standing | None) -> None:
    checkpoints.sweep(job.out)
    step = standing.step if standing else 0
    data = Data(
        path=job.data.name, rows=fed.rows, digest=job.data.digest,
        test_rows=fed.test_rows or None, left_out=fed.left_out, cut=fed.cut,
        environments=fed.environments, task=job.data.task,
    )  # fmt: skip
    # The record first: a log without one would be a stranger's.
    record.begin(job.out, job.about({"data": data}), resumed_from=step if standing else None)
    record.rewind(job.out, step)
