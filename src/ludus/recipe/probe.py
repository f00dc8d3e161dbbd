"""The length of a stage's episodes, from a few that the environment's oracle plays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from ludus.data.episode import Episode
from ludus.data.episode_reader import episodes
from ludus.data.jsonable import dump_json
from ludus.environment.registry import is_remote
from ludus.errors import LudusError
from ludus.recipe.estimate import EpisodeShape
from ludus.recipe.recipe_file import Stage
from ludus.rollout.collect import collect_sync
from ludus.rollout.config import CollectConfig

_EPISODES = 3
_EPISODE_TIMEOUT_S = 10.0
_CHARS_PER_TOKEN = 4


def probe_episodes(stage: Stage) -> EpisodeShape:
    """Play a few episodes in this process; an environment elsewhere gives the default."""
    options = stage.options
    env, task = str(options.get("env", "")), dict(_table(options.get("task")))
    if not env or "base_url" in options or is_remote(env):
        return EpisodeShape()
    if config := _table(options.get("dataset_config")):
        task["dataset_config"] = dict(config)
    try:
        with TemporaryDirectory() as folder:
            run = collect_sync(
                env,
                Path(folder) / "run",
                CollectConfig(
                    num_episodes=_EPISODES,
                    task=task,
                    workers=1,
                    max_attempts=1,
                    episode_timeout=_EPISODE_TIMEOUT_S,
                ),
            )
            complete = [each for each in episodes(run.folder) if each.error is None]
    except LudusError:  # The stage itself reports it.
        return EpisodeShape()
    if not complete:
        return EpisodeShape()
    return EpisodeShape(
        turns=fmean(max(1, each.turns) for each in complete),
        tokens=fmean(map(_count_chars, complete)) / _CHARS_PER_TOKEN,
    )


def _count_chars(episode: Episode) -> int:
    """Characters of the messages, and of the tools that the model is offered."""
    parts = episode.model_dump(mode="json", include={"messages", "tools"}, exclude_none=True)
    return len(dump_json(parts))


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
