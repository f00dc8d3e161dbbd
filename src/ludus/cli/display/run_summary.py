"""The summary that `ludus collect` prints after a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ludus.cli.display.console import escape_control_chars
from ludus.cli.display.formatting import format_count, format_dollars, format_reward, plural
from ludus.cli.program import name_flags

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ludus.rollout import CollectResult

_BAR_WIDTH = 24
_TOKEN_KINDS = ("prompt", "completion")


def render_summary(result: CollectResult, errors: Sequence[str] = ()) -> RenderableType:
    """Render counts, reward, tokens, and a bar per stop reason.

    `errors` are exceptions in the environment's code.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    summary, usage = result.summary, result.summary["usage"]
    reward, tokens = format_reward(summary, label="95 % interval "), ""
    if summary["scored"]:
        reward += f", n = {summary['scored']:,}"
    if usage["prompt_tokens"] or usage["completion_tokens"]:
        prompt, completion = (format_count(usage[f"{kind}_tokens"]) for kind in _TOKEN_KINDS)
        cost = f", {format_dollars(usage['cost'])}" if usage["cost"] is not None else ""
        tokens = f"{prompt} in, {completion} out{cost}"
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("episodes", _format_episodes(summary, result.new_episodes)),
        ("mean reward", reward),
        ("tokens", tokens),
    ):
        if value:
            table.add_row(Text(name, style="bold"), Text(value))
    stop_reasons = sorted(summary["stop_reasons"].items(), key=lambda item: -item[1])
    for number, (reason, count) in enumerate(stop_reasons):
        length = max(1, round(_BAR_WIDTH * count / max(1, summary["episodes"])))
        bar = Text.assemble(f"{reason:<13}", ("█" * length, "cyan"), f" {count:,}")
        table.add_row(Text("" if number else "ended", style="bold"), bar)
    run = Text.assemble((f"{'run':<13}", "bold"), str(result.folder), overflow="ignore")
    lines: list[RenderableType] = [table, run]
    if summary["remaining"]:
        left = f"{plural(summary['remaining'], 'episode')} ({result.stop_reason or 'not played'})"
        lines.append(Text(f"Left to do: {left}. The same command resumes.", style="yellow"))
    if cut_off := summary["stop_reasons"].get("max_turns"):
        text = f"{cut_off:,} of {plural(summary['episodes'], 'episode')} reached `max_turns`."
        lines.append(Text(name_flags(text), style="yellow"))
    if summary["broken"]:
        broken = plural(summary["broken"], "episode")
        lines.append(
            Text(f"Broken and not scored: {broken}. Retry with --retry-broken.", style="yellow")
        )
    for error in errors:
        raised = (escape_control_chars(error), "red")
        lines.append(Text.assemble("The environment raised  ", raised))
    return Group(*lines)


def _format_episodes(summary: Mapping[str, Any], new: int) -> str:
    planned = f" of {summary['planned']:,}" if summary["remaining"] else ""
    episodes = f"{summary['episodes']:,}{planned}"
    if new == summary["episodes"]:
        return episodes
    return f"{episodes} ({new:,} new)" if new else f"{episodes} (none new: the run was complete)"
