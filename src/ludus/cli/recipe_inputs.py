"""Check what the stages of a recipe name, before the first one starts.

Environments and their task arguments, models, data, runs, reward functions, fields of TRL's config
and vLLM. Results of earlier stages are left out: they need not exist yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ludus.cli.program import name_flags, to_texts
from ludus.cli.stage_commands import stage_command
from ludus.errors import ConfigError, LudusError, did_you_mean
from ludus.recipe.recipe_file import Stage, references_in

_TRAINERS: Mapping[str, str] = {"sft": "sft", "dpo": "dpo", "tutor": "sft", "grpo": "grpo"}
"""The method of TRL that trains, by command."""


def check_inputs(stages: Iterable[Stage]) -> None:
    """Raise for the first stage that names something which is not there."""
    for stage in stages:
        try:
            for check in (_check_environment, _check_files, _check_training):
                check(stage)
        except LudusError as error:
            raise ConfigError(f"[{stage.name}] {name_flags(str(error))}") from error


def _check_environment(stage: Stage) -> None:
    from ludus.environment.mixture import parse_mixture
    from ludus.environment.registry import find_environment, is_remote

    (env,) = _named(stage, "env") or ("",)
    if not env or "base_url" in stage.options:
        return
    mixture = parse_mixture(env)
    mixture.check_installed()
    task = stage.options.get("task")
    spec = mixture.specs[0]
    if len(mixture.specs) > 1 or is_remote(spec) or not isinstance(task, Mapping):
        return
    env_spec = find_environment(spec)
    if env_spec.accepts_any_task or not env_spec.native:
        return
    # Both together select a task of the environment.
    selection = {"split", "index"} if {"split", "index"} <= task.keys() else set[str]()
    for name in sorted(task.keys() - selection):
        if name not in env_spec.task_arguments:
            known = ", ".join(env_spec.task_arguments)
            hint = did_you_mean(name, env_spec.task_arguments, f"It has: {known}.")
            raise ConfigError(f"`task`: {spec} has no argument {name!r}. {hint}")


def _check_files(stage: Stage) -> None:
    from pathlib import Path

    from ludus.cli.run_lookup import resolve_run_path
    from ludus.data.hub import is_hub_id
    from ludus.errors import RunError
    from ludus.train.data.loading import open_data
    from ludus.train.data.tokenization import check_rows

    if stage.command in _TRAINERS:
        for name in _named(stage, "data"):
            if Path(name).expanduser().exists() or not is_hub_id(name):
                check_rows(open_data(name), "dpo" if stage.command == "dpo" else "sft")
    for name in _named(stage, "runs"):
        if not (path := resolve_run_path(name)).exists():
            raise RunError(f"There is no run {path}.")


def _check_training(stage: Stage) -> None:
    from ludus.policy.model_ref import check_name
    from ludus.scoring.reward_functions import import_reward_functions
    from ludus.train.grpo.vllm_engine import check_vllm_installed
    from ludus.train.overrides import parse_override_assignments, parse_overrides

    if stage.command not in _TRAINERS:
        return
    for name in _named(stage, "model"):
        check_name(name)
    overrides = parse_override_assignments(_named(stage, "set"))
    parse_overrides(_TRAINERS[stage.command], overrides, effective=None)
    if "vllm_mode" in stage.options:
        check_vllm_installed()
    import_reward_functions(_named(stage, "reward_func"), argument="reward_func")


def _named(stage: Stage, key: str) -> list[str]:
    """The texts of an option, without those that refer to other stages."""
    option = stage_command(stage).options.get(key)
    if option is None or key not in stage.options:
        return []
    texts = to_texts(stage.options[key])
    return [text for text in texts if not any(references_in(text))]
