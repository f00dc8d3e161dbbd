"""What a run may be called on the command line: its path, its name, or `last`."""

from __future__ import annotations

from pathlib import Path

LAST = "last"
_RUNS_DIR = Path("runs")


def resolve_run_path(text: str) -> Path:
    """The path that is meant. Names are those of folders below runs/ and in this folder."""
    from ludus.cli.common_options import expand_user_path
    from ludus.errors import RunError, did_you_mean

    path = expand_user_path(text)
    if path.exists() or len(path.parts) > 1:
        return path
    runs = _list_runs()
    if text == LAST and runs:
        return newest_run(runs)
    if text == LAST:
        raise RunError("No run is in runs/ or in this folder. `ludus collect` makes one.")
    named = [run for run in runs if run.name == text]
    if len(named) > 1:
        listed = " or ".join(map(str, named))
        raise RunError(f"Several runs are called {text!r}. Name one by its path: {listed}.")
    if not named:
        begun = [run for run in runs if run.name.startswith(text)]
        hint = "`ludus runs` lists those below runs/."
        hint = did_you_mean(text, (run.name for run in runs), hint)
        if begun:
            hint = f"Did you mean {newest_run(begun).name!r}?"
        raise RunError(f"There is no run, file or folder {text!r}. {hint}")
    return named[0]


def newest_run(runs: list[Path]) -> Path:
    """The run that was written to last."""
    return max(runs, key=lambda run: (_last_write_time(run), run))


def _list_runs() -> list[Path]:
    from ludus.data.run_folder import walk_folders

    here = sorted(path for path in Path().iterdir() if path.is_dir())
    found = {path for path in (*walk_folders(_RUNS_DIR), *here) if (path / "run.json").is_file()}
    return sorted(found)


def _last_write_time(run: Path) -> float:
    files = (run / "episodes.jsonl", run / "run.json", run)
    return next((file.stat().st_mtime for file in files if file.exists()), 0.0)
