"""A phase in one line of the terminal: spinner, title, progress bar, counts and time left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from ludus.cli.display.console import console, escape_control_chars
from ludus.cli.display.formatting import format_count, format_estimate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ludus.rollout.progress import PhaseProgress

BAR_WIDTH, _MIN_BAR_WIDTH = 30, 8


def spinner_line(title: str, progress: PhaseProgress | None = None) -> RenderableType:
    """Render a phase: spinner, title, and a bar with counts where something is counted."""
    spinner = _spinner(ascii_only=console(stderr=True).options.ascii_only)
    if progress is None:
        return bar_line(title, [], lead=[spinner])
    texts = progress_counts(progress)
    return bar_line(title, texts, lead=[spinner], total=progress.total, done=progress.done)


def bar_line(
    title: str,
    texts: Sequence[str],
    *,
    lead: Sequence[RenderableType] = (),
    total: int | None = None,
    done: int = 0,
) -> RenderableType:
    """Render a title, a bar and texts in one line; without the bar where the line is too narrow."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    title, text = escape_control_chars(title), "  ".join(texts)
    room = console(stderr=True).width - len(title) - len(text) - 2 * len(lead) - 4
    grid = Table.grid(padding=(0, 1))
    if total and room >= _MIN_BAR_WIDTH:
        bar = ProgressBar(total, done, width=min(BAR_WIDTH, room))
        grid.add_row(*lead, *([Text(title)] if title else []), bar, Text(text))
    else:
        grid.add_row(*lead, Text("  ".join(filter(None, [title, text]))))
    return grid


def progress_counts(progress: PhaseProgress) -> list[str]:
    """Count, speed and estimated time left."""
    done = f"{progress.done:,}"
    if progress.total is not None:
        done = f"{done}/{progress.total:,}"
    is_counted = progress.unit or progress.total is not None
    return [
        *([f"{done} {progress.unit}".rstrip()] if is_counted else []),
        *decode_texts(progress.tokens, progress.tokens_per_second),
        *time_left(progress.seconds_left),
    ]


def decode_texts(tokens: int | None, rate: float | None) -> list[str]:
    """Sampled tokens and tokens per second; empty where tokens are not counted."""
    if tokens is None:
        return []
    sampled = f"{format_count(tokens)} tokens"
    if rate is None:
        return [sampled]
    return [sampled, f"{format_count(rate) if rate >= 10 else round(rate, 1)} tokens/s"]


def time_left(seconds: float | None) -> list[str]:
    """The estimate `~3 min left`; empty where there is none."""
    return [] if seconds is None else [f"{format_estimate(seconds)} left"]


@cache
def _spinner(*, ascii_only: bool) -> RenderableType:
    """The spinner of all phases: shared, so that it does not restart with each phase."""
    from rich.spinner import Spinner

    return Spinner("line" if ascii_only else "dots")
