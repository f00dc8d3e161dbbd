"""`ludus diagnose`: what became of a GRPO run, and what to change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ludus.diagnose import Diagnosis, RewardChange, RunData, Verdict

_BARS = "▁▂▃▄▅▆▇█"
_SPARKLINE_WIDTH = 60
_VERDICT_STYLES = {"problem": "yellow", "note": "cyan", "good": "green"}
_SHARE_LABELS = {"equal": "equal groups", "format": "format", "done": "done", "cut_off": "cut off"}
_NUMBER_LABELS = {
    "length": "length",
    "turns": "turns",
    "entropy": "entropy",
    "grad_norm": "gradient",
}
_UNITS = {"length": " tokens"}
_NONZERO_LABELS = {
    "out_of_turns": "out of turns",
    "unscored": "unscored",
    "unseeded": "unseeded groups",
}
"""Told only where there are any."""


def diagnose(
    run: Annotated[Path, typer.Argument(help="The folder of a `ludus train grpo`.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say what became of a GRPO run, whether it learned, and what to change.

    Example: ludus diagnose models/wordle-grpo
    """
    from ludus.diagnose import read_run

    found = read_run(run)
    diagnosis = found.diagnose()
    if as_json:
        typer.echo(json.dumps(_diagnosis_as_json(run, found, diagnosis), allow_nan=False))
    else:
        _print_diagnosis(found, diagnosis)


def _diagnosis_as_json(folder: Path, run: RunData, diagnosis: Diagnosis) -> dict[str, Any]:
    from dataclasses import asdict

    facts = asdict(diagnosis)
    facts |= {
        "reward": _change_as_json(diagnosis.reward),
        "parts": [*map(_change_as_json, diagnosis.parts)],
    }
    del facts["curve"]
    return {"run": str(folder), "planned": run.planned_steps, "finished": run.finished, **facts}


def _change_as_json(change: RewardChange | None) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        "name": change.name,
        "initial": change.initial,
        "final": change.final,
        "delta": change.delta,
        "interval": change.interval,
    }


def _print_diagnosis(run: RunData, diagnosis: Diagnosis) -> None:
    from rich.table import Table
    from rich.text import Text

    from ludus.cli.display.console import console, escape_control_chars

    out = console()
    out.print(Text(escape_control_chars(run.title), style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, value in _table_rows(run, diagnosis):
        table.add_row(Text(escape_control_chars(name), style="bold"), Text(value))
    out.print(table)
    for verdict in diagnosis.verdicts:
        out.print()
        out.print(_render_verdict(verdict))
    for words in run.notes:
        out.print(Text(words, style="dim"), soft_wrap=True)


def _render_verdict(verdict: Verdict) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from ludus.cli.display.console import escape_control_chars

    name = Text(escape_control_chars(verdict.name), style=f"bold {_VERDICT_STYLES[verdict.kind]}")
    finding = Text(escape_control_chars(f"{_capitalize(verdict.finding)}."))
    advice = Text.assemble(("-> ", "bold"), escape_control_chars(f"{_capitalize(verdict.advice)}."))
    return Group(name, Padding(finding, (0, 0, 0, 2)), Padding(advice, (0, 0, 0, 2)))


def _capitalize(words: str) -> str:
    return words[:1].upper() + words[1:]


def _table_rows(run: RunData, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "steps", _format_steps(run, diagnosis)
    yield from _reward_rows(diagnosis)
    yield from _metric_rows(diagnosis)
    if diagnosis.seconds:
        yield "a step", _format_times(diagnosis)


def _format_steps(run: RunData, diagnosis: Diagnosis) -> str:
    of = (
        f" of {run.planned_steps:,}"
        if run.planned_steps and run.planned_steps > diagnosis.steps
        else ""
    )
    state = "" if run.finished else " (not finished)"
    window = diagnosis.window
    return f"{diagnosis.steps:,}{of}{state}; the first and the last {window} logged are compared"


def _reward_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    from ludus.diagnose.number_format import format_change_with_interval, format_reward

    change = diagnosis.reward
    if change is None:
        yield "reward", "no episode was scored"
        return
    yield "reward", format_change_with_interval(change)
    yield "", sparkline(diagnosis.curve, change.scale.low, change.scale.high)
    for part in diagnosis.parts:
        yield part.name, format_change_with_interval(part)
    if diagnosis.held_out:
        (first, before), (last, after) = diagnosis.held_out[0], diagnosis.held_out[-1]
        ends = f"{format_reward(before, change.scale)} (step {first:,})"
        if last > first:
            ends += f" -> {format_reward(after, change.scale)} (step {last:,})"
        yield "held out", ends


def _metric_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    from ludus.diagnose.number_format import format_number, format_share

    for key, (first, last) in diagnosis.figures.items():
        if key in _SHARE_LABELS or (key in _NONZERO_LABELS and max(first, last) > 0):
            yield (
                {**_SHARE_LABELS, **_NONZERO_LABELS}[key],
                f"{format_share(first)} -> {format_share(last)}",
            )
        elif key in _NUMBER_LABELS:
            yield (
                _NUMBER_LABELS[key],
                f"{format_number(first)} -> {format_number(last)}{_UNITS.get(key, '')}",
            )


def _format_times(diagnosis: Diagnosis) -> str:
    """0.5 s: rollout 0.3 s, train 0.2 s; an episode: model 0.2 s, environment 0.1 s."""
    from ludus.diagnose.number_format import format_number

    took = {phase: format_number(seconds, digits=2) for phase, seconds in diagnosis.seconds.items()}
    told = {phase: f"{phase} {seconds} s" for phase, seconds in took.items()}
    whole = told.pop("step", "").removeprefix("step ")
    step = ", ".join(told[phase] for phase in ("rollout", "train") if phase in told)
    # Episodes are played side by side, so that theirs are no parts of the step's time.
    alone = ", ".join(told[phase] for phase in ("model", "environment") if phase in told)
    parts = ": ".join(part for part in (whole, step) if part)
    return "; ".join(part for part in (parts, f"an episode: {alone}" if alone else "") if part)


def sparkline(
    values: Sequence[float], low: float, high: float, width: int = _SPARKLINE_WIDTH
) -> str:
    """A curve in one line of text, between the worst reward and the best."""
    count = min(width, len(values))
    edges = [round(at * len(values) / count) for at in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    top, span = len(_BARS) - 1, (high - low) or 1.0
    return "".join(_BARS[min(top, max(0, round(top * (v - low) / span)))] for v in means)
