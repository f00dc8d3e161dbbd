"""Resuming a run: what an earlier call left in the output folder, and if it is the same run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.data.config import describe_differences
from ludus.data.json_files import to_jsonable
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import truncate_log
from ludus.errors import OtherSettings, RunError
from ludus.train.output import checkpoints, record, training_folder
from ludus.train.output.checkpoints import CheckpointState
from ludus.train.output.record import TrainingRecord
from ludus.train.trl_config import NON_DECISIVE_FIELDS

if TYPE_CHECKING:
    from ludus.train.context import TrainContext

_MAX_DIFFERENCES_SHOWN = 8
NON_DECISIVE = frozenset({
    "device", "report_to", "minutes", "checkpoint_every", "compile", "allow_unseeded",
})  # fmt: skip
"""Settings that may differ when a run is resumed: they do not affect the trained weights."""
NON_DECISIVE_IN_GRPO = NON_DECISIVE | {"batch_size", "keep", "max_rollbacks"}
"""In GRPO the gradient of a step is over all its episodes, in however many batches."""


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """The run that this call continues; without a record there is none."""

    record: TrainingRecord | None = None
    checkpoint: Path | None = None
    """Its latest complete checkpoint."""
    state: CheckpointState | None = None
    """The counters of that checkpoint."""
    extends: bool = False
    """Whether more steps are requested than it was started with."""

    @property
    def finished(self) -> bool:
        """Whether all its steps are done, and no more are requested."""
        return self.record is not None and self.record.is_finished and not self.extends


def find_previous_run(context: TrainContext, *, overwrite: bool) -> PreviousRun:
    """Find the run to resume in the output folder. Another config raises, unless `overwrite`."""
    out, progress = context.out, context.progress
    previous = record.read_record(out)
    if previous is None or overwrite or not training_folder.has_progress(out):
        return PreviousRun()
    trained_on = context.data_identity(previous) if previous.kind == context.method else {}
    check_same_run(out, context.record_fields(trained_on))
    config = context.config.as_json()
    extends = previous.steps_before_extension(context.method, config) is not None
    if previous.is_finished and not extends:
        progress.say(f"{out} is trained already, with the same settings. Nothing is left to do.")
        return PreviousRun(previous)
    # The checkpoint to resume from is the same on all ranks.
    latest = checkpoints.latest_checkpoint(out) if context.distributed.is_main else None
    step = -1 if latest is None else checkpoints.step_of(latest)
    (agreed,) = context.distributed.all_reduce_max([step])
    checkpoint = checkpoints.checkpoint_folder(out, agreed) if agreed >= 0 else None
    state = checkpoints.read_state(checkpoint) if checkpoint is not None else None
    if extends and state is not None:
        progress.say(
            f"Extending {out} from step {state.step:,} to {config['steps']:,}; the learning rate "
            f"now follows the schedule of {config['steps']:,} steps"
        )
    elif extends and previous.metrics is not None and previous.is_finished:
        raise RunError(
            f"{out} has finished its {previous.metrics.steps:,} steps, and its last checkpoint, "
            "which holds the optimizer state, is gone or damaged. To train its model further with "
            f"a new optimizer, set `model` to {out} and use another `out`."
        )
    return PreviousRun(previous, checkpoint, state, extends)


def start_or_resume(
    context: TrainContext,
    trained_on: JsonObject,
    state: CheckpointState | None,
    *,
    overwrite: bool,
) -> None:
    """Write the record of a run that starts or resumes, and rewind its log to the checkpoint.

    Called when the trainer has accepted its config: until then an existing model must stay.
    """
    if overwrite:
        training_folder.remove_run(context.out)
    step = state.step if state is not None else None
    checkpoints.remove_unusable(context.out, step)
    # The record comes first: a folder with a log and no record would be taken for somebody else's.
    record.create_record(context.out, context.record_fields(trained_on), resumed_from=step)
    # Without a checkpoint everything is done again, including what is logged before the first step.
    truncate_log(context.out, -1 if step is None else step)


def check_same_run(out: Path, fields: JsonObject) -> None:
    """Raise if the previous run has another model, other data or another config.

    A GRPO run with more steps is the same run: it is extended.
    """
    previous = record.read_record(out)
    if previous is None:
        return
    extends = previous.steps_before_extension(fields["kind"], fields["settings"]) is not None
    ignored = ("steps",) if extends else ()
    before, now = previous.model_dump(), to_jsonable(fields)
    differences = list(
        describe_differences(_decisive_fields(before, ignored), _decisive_fields(now, ignored))
    )
    if differences:
        shown = "; ".join(differences[:_MAX_DIFFERENCES_SHOWN])
        raise OtherSettings(
            f"{out} holds a run with other settings ({shown}). Set `overwrite` to replace it, or "
            "use another `out`."
        )


def _decisive_fields(fields: JsonObject, ignored: Collection[str]) -> JsonObject:
    """The fields that must be the same to resume a run: of the data its digest, not its path."""
    data, environment = fields.get("data"), fields.get("environment")
    non_decisive = NON_DECISIVE_IN_GRPO if fields["kind"] == "grpo" else NON_DECISIVE
    return {
        **{key: fields.get(key) for key in ("kind", "model", "weights", "chat_format")},
        "data": {"digest": data["digest"]} if data else None,
        "environment": environment and environment["spec"],
        **decisive_config(fields["settings"], ignored=non_decisive | set(ignored)),
    }


def decisive_config(config: JsonObject, *, ignored: Collection[str] = NON_DECISIVE) -> JsonObject:
    """The settings that must be the same to resume a run, without those `ignored`."""
    overrides = config.get("overrides") or {}
    decisive = {key: value for key, value in config.items() if key not in ignored}
    decisive["overrides"] = {
        key: value for key, value in overrides.items() if key not in NON_DECISIVE_FIELDS
    }
    return decisive
