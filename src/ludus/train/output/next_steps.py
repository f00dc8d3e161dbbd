"""The environment of a trained model as arguments of a command, for cards and summaries."""

from __future__ import annotations

import json
from typing import Any

from ludus.environment.mixture import mix
from ludus.rollout import SYSTEM_PROMPT
from ludus.train.output.record_schema import TrainingRecord

UNKNOWN_ENVIRONMENT = "ENV"
"""Placeholder for an environment that the rows do not name."""


def environment_arguments(training: TrainingRecord) -> tuple[str, ...]:
    """The environment that the model was trained on, with its task, as `ludus eval` takes them."""
    if training.environment is not None:
        prompt = training.settings.get("system_prompt", SYSTEM_PROMPT)
        option = () if prompt == SYSTEM_PROMPT else ("--system-prompt", prompt or "")
        return (training.environment.spec, *_task_option(training.settings.get("task")), *option)
    if training.data is None or not training.data.environments:
        return (UNKNOWN_ENVIRONMENT,)
    return (str(mix(training.data.environments)), *_task_option(training.data.task))


def _task_option(task: Any) -> tuple[str, ...]:
    return ("--task", json.dumps(task, ensure_ascii=False)) if task else ()
