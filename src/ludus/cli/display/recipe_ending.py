"""The end of a recipe: before and after, one task as both candidates played it, what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.display.console import console, escape_control_chars

if TYPE_CHECKING:
    from ludus.data.episode import Episode
    from ludus.recipe.recipe_file import Recipe


def print_ending(
    recipe: Recipe,
    outputs: Mapping[str, Path | None],
    selected: Sequence[str],
    *,
    ran: Sequence[str],
) -> None:
    """Print the last evaluation, unless its command has just done so, and what to do next."""
    from rich.text import Text

    from ludus.cli.display.eval_table import print_stored_evaluation
    from ludus.evaluation.results import load_evaluation
    from ludus.recipe.recipe_file import substitute

    out = console()
    stages = {stage.name: stage for stage in recipe.stages if stage.name in selected}
    evaluations = [name for name, stage in stages.items() if stage.command == "eval"]
    if evaluations:
        folder = outputs[evaluations[-1]]
        assert folder is not None
        if evaluations[-1] not in ran:
            print_stored_evaluation(out, folder)
        _print_samples(folder, [score.label for score in load_evaluation(folder).scores])
    for name, stage in stages.items():
        if stage.command == "report":
            report = escape_control_chars(f"\nReport: {outputs[name]}")
            out.print(Text(report, style="bold"), soft_wrap=True)
    if recipe.next_commands:
        folders = {name: str(path) for name, path in outputs.items() if path is not None}
        out.print(Text("\nTo go further:", style="bold"))
        for command in recipe.next_commands:
            line = escape_control_chars(f"  {substitute(command, folders)}")
            out.print(Text(line), soft_wrap=True)


def _print_samples(folder: Path, labels: Sequence[str]) -> None:
    """Print one task as the first and the last candidate played it."""
    from rich.text import Text

    from ludus.cli.display.transcript import print_message
    from ludus.data.episode_reader import EpisodeHead, episodes

    if len(labels) < 2:
        return
    out = console()
    before, after = (
        {EpisodeHead.from_episode(each).plan_index: each for each in episodes(folder / label)}
        for label in (labels[0], labels[-1])
    )
    pair = _choose_pair(before, after)
    if pair is None:
        return
    for title, label, episode in (("before", labels[0], pair[0]), ("after", labels[-1], pair[1])):
        reward = "unscored" if episode.reward is None else f"reward {episode.reward:g}"
        heading = f"\nA task {title}: {label}, {reward} ({episode.stop_reason.value})"
        out.print(Text(escape_control_chars(heading), style="bold"))
        for message in episode.messages:
            if message.role != "system":
                print_message(out, message)
        if episode.messages and episode.messages[-1].role == "user":
            out.print(Text("  (no complete reply)", style="dim"))


def _choose_pair(
    before: Mapping[int | None, Episode], after: Mapping[int | None, Episode]
) -> tuple[Episode, Episode] | None:
    """The task that shows best what has changed: by reward, then by valid calls.

    Only scored attempts are compared; None if there is no task with two of them.
    """

    def gain(pair: tuple[Episode, Episode]) -> tuple[float, int]:
        old, new = pair
        return (new.reward or 0) - (old.reward or 0), new.tool_calls - old.tool_calls

    pairs = [
        (old, new)
        for index, old in before.items()
        if (new := after.get(index)) is not None
        and old.reward is not None
        and new.reward is not None
    ]
    return max(pairs, key=gain, default=None)
