"""The transcript of an episode: its messages and tool calls, its reward and its costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.cli.display.console import escape_control_chars
from ludus.cli.display.formatting import format_count, format_dollars, plural

if TYPE_CHECKING:
    from rich.console import Console

    from ludus.data.episode import Episode
    from ludus.data.messages import Message

_ROLE_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}


def print_transcript(out: Console, episode: Episode) -> None:
    """Print a whole episode."""
    agent = " ".join(
        str(episode.agent[key]) for key in ("provider", "model") if key in episode.agent
    )
    step = f"step {episode.agent['step']}" if "step" in episode.agent else ""
    seed = "" if episode.seed is None else f"seed {episode.seed}"
    facts = [episode.environment, seed, agent, step]
    header = f"{episode.episode_id}  {' · '.join(fact for fact in facts if fact)}"
    out.print(escape_control_chars(header), markup=False, soft_wrap=True, style="bold")
    turn = 0
    for message in episode.messages:
        print_message(out, message)
        if message.role == "assistant":
            _print_turn_notes(out, episode, turn)
            turn += 1
    if turn < len(episode.tutor_replies):  # The agent has said nothing in its last turn.
        _print_turn_notes(out, episode, turn)
    reward = "unscored" if episode.reward is None else f"reward {episode.reward:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in episode.rewards.items())
    usage = episode.usage
    results = [
        f"{reward} ({parts})" if parts else reward,
        episode.stop_reason.value,
        plural(episode.turns, "turn"),
        plural(episode.malformed_calls, "malformed call") if episode.malformed_calls else "",
        f"{format_count(usage.total_tokens)} tokens" if usage.total_tokens else "",
        format_dollars(usage.cost),
    ]
    style = "bold" if episode.reward is not None and episode.reward > 0 else "bold yellow"
    line = " · ".join(result for result in results if result)
    out.print(escape_control_chars(line), markup=False, style=style)
    if (error := episode.error) is not None:
        _print_indented(out, f"{error.kind} ({error.where}): {error.message}", "red")


def print_message(out: Console, message: Message, *, title: str | None = None) -> None:
    """Print one message below its role, or another title."""
    style = _ROLE_STYLES[message.role]
    out.print(title or message.role, style=f"bold {style}")
    if message.reasoning_content:
        _print_indented(out, message.reasoning_content, "dim italic")
    if message.text:
        _print_indented(out, message.text, "dim" if message.role == "system" else "")
    for call in message.tool_calls or ():
        _print_indented(out, f"{call.function.name}({call.function.arguments})", style)


def _print_turn_notes(out: Console, episode: Episode, turn: int) -> None:
    """Print whether the action of a turn was random, and what the tutor would have replied."""
    if turn in episode.explored_turns:
        _print_indented(out, "(a random action)", "dim")
    advice = episode.tutor_replies[turn] if turn < len(episode.tutor_replies) else None
    if advice is not None:
        print_message(out, advice, title="tutor")


def _print_indented(out: Console, text: str, style: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    out.print(Padding(Text(escape_control_chars(text), style=style), (0, 0, 0, 2)))
