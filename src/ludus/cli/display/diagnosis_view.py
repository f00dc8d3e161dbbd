"""The output of `ludus diagnose`: a table with a reward curve, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ludus.cli.display.console import console, escape_control_chars
from ludus.data.sparkline import sparkline

if TYPE_CHECKING:
    from rich.table import Table

    from ludus.diagnose import Diagnosis, RewardChange, RunData

_SPARKLINE_WIDTH = 60
_VERDICT_STYLES = {"problem": "yellow", "note": "cyan", "good": "green"}
_SHARE_LABELS = {
    "zero_variance": "zero variance",
    "format": "format",
    "done": "done",
    "cut_off": "cut off",
}
_NONZERO_LABELS = {
    "out_of_turns": "out of turns",
    "unscored": "unscored",
}
"""Shares that are printed only where they are not zero."""
_NUMBER_LABELS = {
    "length": "length",
    "turns": "turns",
    "entropy": "entropy",
    "grad_norm": "gradient",
}
_UNITS = {"length": " tokens"}
_MAX_BUCKET_ROWS = 20


def diagnosis_as_json(diagnosis: Diagnosis, translate: Callable[[str], str]) -> dict[str, Any]:
    """The fields of a diagnosis; `translate` puts flags in place of argument names."""

    def change_as_json(change: RewardChange) -> dict[str, Any]:
        names = ("name", "initial", "final", "delta", "interval")
        return {name: getattr(change, name) for name in names}

    fields = asdict(diagnosis)
    del fields["curve"]
    fields["reward"] = None if diagnosis.reward is None else change_as_json(diagnosis.reward)
    fields["parts"] = [change_as_json(part) for part in diagnosis.parts]
    for verdict in fields["verdicts"]:
        verdict |= {name: translate(verdict[name]) for name in ("finding", "advice")}
    return fields


def print_diagnosis(run: RunData, diagnosis: Diagnosis, translate: Callable[[str], str]) -> None:
    """Print the table, the verdicts, and notes on unreadable files."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    def as_sentence(text: str) -> str:
        return escape_control_chars(translate(f"{text[:1].upper()}{text[1:]}."))

    out = console()
    out.print(Text(escape_control_chars(run.title), style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, value in _table_rows(run, diagnosis):
        table.add_row(Text(escape_control_chars(name), style="bold"), Text(value))
    out.print(table)
    if diagnosis.curriculum:
        out.print()
        out.print(_bucket_table(diagnosis))
    for verdict in diagnosis.verdicts:
        out.print()
        style = f"bold {_VERDICT_STYLES[verdict.kind]}"
        out.print(Text(escape_control_chars(verdict.name), style=style))
        out.print(Padding(Text(as_sentence(verdict.finding)), (0, 0, 0, 2)))
        advice = Text.assemble(("-> ", "bold"), as_sentence(verdict.advice))
        out.print(Padding(advice, (0, 0, 0, 2)))
    for note in run.notes:
        out.print(Text(translate(note), style="dim"), soft_wrap=True)


def _table_rows(run: RunData, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    from ludus.diagnose.reward_delta import format_number, format_share

    steps = f"{diagnosis.steps:,}"
    if run.planned_steps and run.planned_steps > diagnosis.steps:
        steps += f" of {run.planned_steps:,}"
    state = "" if run.finished else " (not finished)"
    window = diagnosis.window
    yield "steps", f"{steps}{state}; the first {window} logged steps are compared with the last"
    yield from _reward_rows(diagnosis)
    for key, (first, last) in diagnosis.metrics.items():
        if key in _SHARE_LABELS or (key in _NONZERO_LABELS and max(first, last) > 0):
            label = _SHARE_LABELS.get(key) or _NONZERO_LABELS[key]
            yield label, f"{format_share(first)} -> {format_share(last)}"
        elif key in _NUMBER_LABELS:
            change = f"{format_number(first)} -> {format_number(last)}"
            yield _NUMBER_LABELS[key], f"{change}{_UNITS.get(key, '')}"
    if diagnosis.seconds:
        yield "step time", _format_times(diagnosis)


def _bucket_table(diagnosis: Diagnosis) -> Table:
    """The buckets of a curriculum, those that were drawn most."""
    from rich.table import Table
    from rich.text import Text

    from ludus.diagnose.reward_delta import format_share

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("curriculum")
    for name in ("groups", "share", "share at the end", "success"):
        table.add_column(name, justify="right")
    drawn_most = sorted(diagnosis.curriculum, key=lambda each: -each.groups)[:_MAX_BUCKET_ROWS]
    for bucket in diagnosis.curriculum:
        if bucket not in drawn_most:
            continue
        rates = (bucket.first_success, bucket.last_success)
        table.add_row(
            Text(escape_control_chars(bucket.label)),
            f"{bucket.groups:,.0f}",
            format_share(bucket.share),
            format_share(bucket.last_share),
            " -> ".join(format_share(rate) for rate in rates if rate is not None),
        )
    if hidden := len(diagnosis.curriculum) - len(drawn_most):
        table.add_row(f"{hidden} more")
    return table


def _reward_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    from ludus.data.estimates import format_mean
    from ludus.diagnose.reward_delta import format_change_with_interval, format_reward

    change, mean = diagnosis.reward, diagnosis.mean_reward
    if mean is not None:
        text = format_mean(mean.value, mean.interval, label="95 % interval ")
        yield "mean reward", f"{text}, n = {mean.n:,} of all steps"
    if change is None:
        yield "reward change", "no episode was scored"
        return
    scale = change.scale
    yield "reward change", format_change_with_interval(change)
    yield "", sparkline(diagnosis.curve, low=scale.low, high=scale.high, width=_SPARKLINE_WIDTH)
    for part in diagnosis.parts:
        yield part.name, format_change_with_interval(part)
    if diagnosis.held_out:
        (first, before), (last, after) = diagnosis.held_out[0], diagnosis.held_out[-1]
        text = f"{format_reward(before, scale)} (step {first:,})"
        if last > first:
            text += f" -> {format_reward(after, scale)} (step {last:,})"
        yield "held out", text


def _format_times(diagnosis: Diagnosis) -> str:
    """0.5 s: rollout 0.3 s, train 0.2 s; per episode: model 0.2 s, environment 0.1 s."""
    from ludus.diagnose.reward_delta import format_number

    def join(*phases: str) -> str:
        seconds = {
            phase: diagnosis.seconds[phase] for phase in phases if phase in diagnosis.seconds
        }
        return ", ".join(f"{phase} {format_number(s, digits=2)} s" for phase, s in seconds.items())

    step = ": ".join(filter(None, (join("step").removeprefix("step "), join("rollout", "train"))))
    # Not parts of a step's time, because episodes run concurrently.
    episode = join("model", "environment")
    return "; ".join(filter(None, (step, f"per episode: {episode}" if episode else "")))
