"""Find a run by its path, its name, or `last`."""

from __future__ import annotations

from pathlib import Path

LAST = "last"


def resolve_run_path(text: str) -> Path:
    """The path of a run, given a path, or the name of a folder in runs/ or in this folder."""
    from ludus.data.run_folder import RUN_FILE, RUNS_DIR, walk_run_folders
    from ludus.errors import RunError, did_you_mean
    from ludus.options import expand_path

    path = expand_path(text)
    if path.exists() or len(path.parts) > 1:
        return path
    folders = {
        *walk_run_folders(RUNS_DIR),
        *(child for child in Path().iterdir() if child.is_dir()),
    }
    runs = sorted(folder for folder in folders if (folder / RUN_FILE).is_file())
    if text == LAST and runs:
        return newest_run(runs)
    if text == LAST:
        raise RunError("There is no run in runs/ or in this folder. `ludus collect` creates one.")
    matches = [run for run in runs if run.name == text]
    if len(matches) > 1:
        paths = " or ".join(map(str, matches))
        raise RunError(f"Several runs are named {text!r}. Give the path: {paths}.")
    if matches:
        return matches[0]
    hint = "`ludus runs` lists those below runs/."
    hint = did_you_mean(text, (run.name for run in runs), hint)
    if similar := [run for run in runs if run.name.startswith(text)]:
        hint = f"Did you mean {newest_run(similar).name!r}?"
    raise RunError(f"There is no run, file or folder {text!r}. {hint}")


def newest_run(runs: list[Path]) -> Path:
    """The run that was written to last."""
    from ludus.data.run_folder import RUN_FILE

    def last_write_time(run: Path) -> float:
        files = (run / "episodes.jsonl", run / RUN_FILE, run)
        return next((file.stat().st_mtime for file in files if file.exists()), 0.0)

    return max(runs, key=lambda run: (last_write_time(run), run))
