"""The environment of a trained model as arguments of a command, for cards and summaries."""

from __future__ import annotations

import json

from ludus.environment.mixture import mix
from ludus.rollout import SYSTEM_PROMPT
from ludus.train.output.record_schema import TrainingRecord

UNKNOWN_ENVIRONMENT = "ENV"
"""Placeholder for an environment that the rows do not name."""


def environment_arguments(training: TrainingRecord) -> tuple[str, ...]:
    """The environment that the model was trained on, as `ludus eval` takes it.

    With the task and the system prompt of the training: under others the model is another one.
    """
    if training.environment is not None:
        spec, task = training.environment.spec, training.settings.get("task")
        prompt = training.settings.get("system_prompt", SYSTEM_PROMPT) or ""
    elif training.data is not None and training.data.environments:
        spec, task = str(mix(training.data.environments)), training.data.task
        prompt = training.data.system_prompt
    else:
        return (UNKNOWN_ENVIRONMENT,)
    task_option = ("--task", json.dumps(task, ensure_ascii=False)) if task else ()
    prompt_option = ("--system-prompt", prompt) if prompt not in (None, SYSTEM_PROMPT) else ()
    return (spec, *task_option, *prompt_option)
