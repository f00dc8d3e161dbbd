"""`ludus show`: one transcript, to be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ludus.data.episode import Episode
    from ludus.data.messages import Message

_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}


def show(
    run: Annotated[Path, typer.Argument(help="A run folder, or its episodes.jsonl.")],
    episode: Annotated[
        str, typer.Argument(help="Its number or its id.", show_default="the first")
    ] = "0",
    as_json: Annotated[bool, typer.Option("--json", help="The line as it is stored.")] = False,
) -> None:
    """Print one episode: what was shown, thought, said and called, and what it was worth.

    Example: ludus show runs/wordle-1a2b3c4d 17
    """
    from ludus.cli.console import console
    from ludus.data.lines import find_episode

    found = find_episode(run / "episodes.jsonl" if run.is_dir() else run, episode)
    if as_json:
        typer.echo(found.as_line().decode().rstrip())
        return
    transcript(console(), found)


def transcript(out: Console, episode: Episode) -> None:
    """A whole episode."""
    _head(out, episode)
    for message in episode.messages:
        write(out, message)
    _end(out, episode)


def write(out: Console, message: Message) -> None:
    """One message, by a line that says whose it is."""
    style = _STYLES[message.role]
    out.print(message.role, style=f"bold {style}")
    if message.reasoning_content:
        _print(out, message.reasoning_content, "dim italic")
    if message.text:
        _print(out, message.text, "dim" if message.role == "system" else "")
    for call in message.tool_calls or ():
        _print(out, f"{call.function.name}({call.function.arguments})", style)


def _print(out: Console, words: str, style: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from ludus.cli.console import harmless

    out.print(Padding(Text(harmless(words), style=style), (0, 0, 0, 2)))


def _head(out: Console, episode: Episode) -> None:
    from ludus.cli.console import harmless

    agent = " ".join(
        str(episode.agent[key]) for key in ("provider", "model") if key in episode.agent
    )
    step = f"step {episode.agent['step']}" if "step" in episode.agent else ""
    facts = [episode.environment, f"seed {episode.seed}", agent, step]
    head = f"{episode.episode_id}  {' · '.join(fact for fact in facts if fact)}"
    out.print(harmless(head), markup=False, soft_wrap=True, style="bold")


def _end(out: Console, episode: Episode) -> None:
    from ludus.cli.figures import count, dollars, plural

    worth = "unscored" if episode.reward is None else f"reward {episode.reward:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in episode.rewards.items())
    usage = episode.usage
    facts = [
        worth + (f" ({parts})" if parts else ""),
        episode.stop_reason.value,
        plural(episode.turns, "turn"),
        plural(episode.malformed_calls, "malformed call") if episode.malformed_calls else "",
        f"{count(usage.total_tokens)} tokens" if usage.total_tokens else "",
        dollars(usage.cost),
    ]
    good = episode.reward is not None and episode.reward > 0
    out.print(" · ".join(fact for fact in facts if fact), style="bold" if good else "bold yellow")
    if episode.error is not None:
        error = episode.error
        _print(out, f"{error.kind} ({error.where}): {error.message}", "red")
