"""Export selected episodes to a curated data set: `ludus curate` with a condition."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ludus.curation.config import CurateConfig
from ludus.curation.pipeline import curate
from ludus.data.locked_database import quote_sql
from ludus.data.stage_output import StageOutput
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.viewer.episode_queries import EpisodeFilter

_MAX_PICKED = 10_000


class PickedEpisode(BaseModel):
    """An episode that was picked by hand."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    episode_id: str
    attempt: int = 1


class ExportRequest(BaseModel):
    """What to export, and where to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: str
    """A folder below the one that `ludus view` was started in."""
    to: Literal["sft", "dpo", "episodes"] = "sft"
    picked: tuple[PickedEpisode, ...] = Field(default=(), max_length=_MAX_PICKED)
    """If empty, all episodes of the filter are exported."""
    runs: tuple[str, ...] = ()
    where: str = ""
    search: str = ""
    stop_reason: str = ""
    group_id: str = ""


def export_episodes(request: ExportRequest, entries: dict[str, StageOutput]) -> JsonObject:
    """Write the data set. Returns its report, and the command that does the same."""
    out = _check_folder(request.out)
    if request.picked:
        keys = tuple(dict.fromkeys(each.run for each in request.picked))
        rows = []
        for each in request.picked:
            entry = entries.get(each.run)
            # As `curate` names runs: by the name of the folder that the episodes are in.
            file = None if entry is None else entry.episodes
            run = Path(each.run).name if file is None else file.absolute().parent.name
            rows.append(f"({quote_sql(run)}, {quote_sql(each.episode_id)}, {each.attempt})")
        condition = f"(run, episode_id, attempt) IN ({', '.join(rows)})"
    else:
        wanted = EpisodeFilter(**request.model_dump(exclude={"out", "to", "picked"}))
        keys, condition = wanted.runs, wanted.condition
    runs = [entry for key, entry in entries.items() if entry.episodes and (not keys or key in keys)]
    config = CurateConfig(to=request.to, where=condition or None, keep_unscored=True)
    report = curate([entry.path for entry in runs], out, config)
    command = ["ludus", "curate", *(entry.shown_path for entry in runs), "--to", request.to]
    command += ["--where", condition] if condition else []
    command += ["--keep-unscored", "-o", str(out)]
    return {"out": str(out), "command": shlex.join(command), "report": report.as_json()}


def _check_folder(name: str) -> Path:
    """A folder below the working directory: the page must not write anywhere else."""
    if "\0" in name:
        raise ConfigError("`out` must be the name of a folder, got one with a null character.")
    path = Path(name.strip())
    outside = path.is_absolute() or not path.resolve().is_relative_to(Path.cwd())
    # `curate` would expand it.
    if not name.strip() or outside or name.strip().startswith("~"):
        raise ConfigError(
            f"`out` must be a folder below {Path.cwd()}, such as data/picked, got {name!r}."
        )
    if path.resolve() == Path.cwd():
        raise ConfigError("`out` must be a new folder, such as data/picked.")
    return path
