"""`ludus show`: one transcript, to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ludus.data.episode import Episode
    from ludus.data.messages import Message
    from ludus.errors import RunError

_ROLE_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}


def show(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT",
            help="A run by its path, its name or `last`; a data set, an evaluation or a model; "
            "then the number or the id of an episode or row.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The line as it is stored.")] = False,
) -> None:
    """Print one episode: what was shown, thought, said and called, and what it was worth.

    Of a data set it prints a row, of an evaluation its figures, of a trained model what it was
    trained on.

    Examples:

    ludus show last 17

    ludus show runs/wordle-1a2b3c4d 17

    ludus show data/wordle 3
    """
    from ludus.cli.run_lookup import resolve_run_path

    names, episode = _split_target(target)
    paths = [resolve_run_path(name) for name in names]
    path = paths[0] if len(paths) == 1 else _newest_of(paths, episode)
    _show_path(path, episode, as_json=as_json)


def _split_target(target: list[str]) -> tuple[list[str], str | None]:
    """Paths or names, and the episode at their end if there is one."""
    *names, last = target
    if names and (last.isdecimal() or not Path(last).exists()):
        return names, last
    return target, None


def _newest_of(paths: list[Path], episode: str | None) -> Path:
    """The newest of several runs, which a pattern of the shell may name."""
    from ludus.cli.run_lookup import newest_run

    chosen = newest_run(paths)
    other = next(path for path in paths if path != chosen)
    again = " ".join(["ludus show", str(other), *([episode] if episode else [])])
    typer.echo(f"{len(paths)} were named; this is the newest, {chosen}. Another: {again}", err=True)
    return chosen


def _show_path(path: Path, episode: str | None, *, as_json: bool) -> None:
    from ludus.cli.display.console import console
    from ludus.cli.display.data_view import find_row_file, print_row, print_training, read_row
    from ludus.data.episode_reader import find_episode

    file = path / "episodes.jsonl" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        if _show_evaluation(path, episode, as_json=as_json):
            return
        rows = find_row_file(path)
        if rows is None:
            if not print_training(console(), path):
                raise _nothing_to_show(path)
            return
        file = rows
    if _holds_episodes(file):
        found = find_episode(file, episode or "0")
        if as_json:
            typer.echo(found.to_line().decode().rstrip())
        else:
            print_transcript(console(), found)
        return
    row = read_row(file, episode or "0")
    if as_json:
        typer.echo(json.dumps(row, ensure_ascii=False))
    else:
        print_row(console(), file, episode or "0", row)


def _holds_episodes(file: Path) -> bool:
    """Whether a file is a journal; one without a line that can be read is taken for one."""
    from pydantic_core import from_json

    from ludus.data.episode_reader import numbered_lines

    for _, line in numbered_lines(file):
        try:
            fields = from_json(line)
        except ValueError:
            continue
        return isinstance(fields, dict) and "stop_reason" in fields
    return True


def _show_evaluation(path: Path, episode: str | None, *, as_json: bool) -> bool:
    """Print the evaluation that is in this folder, if there is one."""
    from ludus.cli.display.console import console
    from ludus.cli.display.data_view import print_evaluation
    from ludus.errors import RunError

    try:
        summary = json.loads((path / "summary.json").read_bytes())
    except (OSError, ValueError):
        return False
    if not isinstance(summary, dict) or summary.get("kind") != "eval":
        return False
    if episode is not None:
        runs = [str(path / one["label"]) for one in summary["candidates"]]
        commands = " or ".join(f"`ludus show {run} {episode}`" for run in runs)
        raise RunError(f"{path} is an evaluation. Name the candidate: {commands}.")
    if as_json:
        typer.echo(json.dumps(summary, ensure_ascii=False))
    else:
        print_evaluation(console(), path, summary)
    return True


def _nothing_to_show(path: Path) -> RunError:
    """What is there instead, and what to type."""
    from ludus.data.run_folder import find_runs
    from ludus.errors import RunError

    if any(path.glob("*.parquet")) or (path / "dataset_dict.json").is_file():
        return RunError(
            f"{path} is a data set that is not JSONL. `ludus curate --format jsonl` writes one "
            "that can be shown."
        )
    if runs := find_runs(path):
        return RunError(
            f"{path} is a folder of runs. Name one, such as `ludus show {runs[-1].path}`; "
            f"`ludus runs {path}` lists them."
        )
    return RunError(
        f"Nothing in {path} can be shown: it is no run, data set, evaluation or trained model."
    )


def print_transcript(out: Console, episode: Episode) -> None:
    """A whole episode."""
    _print_header(out, episode)
    for message in episode.messages:
        print_message(out, message)
    _print_footer(out, episode)


def print_message(out: Console, message: Message) -> None:
    """One message, by a line that says whose it is."""
    style = _ROLE_STYLES[message.role]
    out.print(message.role, style=f"bold {style}")
    if message.reasoning_content:
        _print_indented(out, message.reasoning_content, "dim italic")
    if message.text:
        _print_indented(out, message.text, "dim" if message.role == "system" else "")
    for call in message.tool_calls or ():
        _print_indented(out, f"{call.function.name}({call.function.arguments})", style)


def _print_indented(out: Console, words: str, style: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from ludus.cli.display.console import escape_control_chars

    out.print(Padding(Text(escape_control_chars(words), style=style), (0, 0, 0, 2)))


def _print_header(out: Console, episode: Episode) -> None:
    from ludus.cli.display.console import escape_control_chars

    agent = " ".join(
        str(episode.agent[key]) for key in ("provider", "model") if key in episode.agent
    )
    step = f"step {episode.agent['step']}" if "step" in episode.agent else ""
    facts = [episode.environment, f"seed {episode.seed}", agent, step]
    head = f"{episode.episode_id}  {' · '.join(fact for fact in facts if fact)}"
    out.print(escape_control_chars(head), markup=False, soft_wrap=True, style="bold")


def _print_footer(out: Console, episode: Episode) -> None:
    from ludus.cli.display.formatting import format_count, format_dollars, plural

    worth = "unscored" if episode.reward is None else f"reward {episode.reward:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in episode.rewards.items())
    usage = episode.usage
    facts = [
        worth + (f" ({parts})" if parts else ""),
        episode.stop_reason.value,
        plural(episode.turns, "turn"),
        plural(episode.malformed_calls, "malformed call") if episode.malformed_calls else "",
        f"{format_count(usage.total_tokens)} tokens" if usage.total_tokens else "",
        format_dollars(usage.cost),
    ]
    good = episode.reward is not None and episode.reward > 0
    out.print(" · ".join(fact for fact in facts if fact), style="bold" if good else "bold yellow")
    if episode.error is not None:
        error = episode.error
        _print_indented(out, f"{error.kind} ({error.where}): {error.message}", "red")
