"""The report of an evaluation, README.md: results, method, candidates, how to reproduce it."""

from __future__ import annotations

import json

from ludus.data.hub import code_block, inline_code, markdown_table, to_single_line
from ludus.evaluation.results import POWER, Evaluation
from ludus.evaluation.table import (
    ResultTable,
    build_notes,
    build_slice_tables,
    build_tables,
    describe_method,
)

_METHOD = (
    "Shares have Wilson's score interval, and their differences Newcombe's for paired data. "
    "Rewards that are all 0 or 1 count as shares. "
    "Means, and differences of means, have Student's interval with Hall's correction for "
    "skewness, if there are at least five tasks that differ. The attempts at one task share "
    "the weight of one; where their outcomes differ, shares have Wilson's interval for the "
    "effective number of tasks, and differences that of means. All are 95% confidence "
    "intervals. A difference is resolved if its interval excludes 0; the number of episodes "
    f"that would resolve it is for a power of {100 * POWER:.0f}%."
)


def render_report(evaluation: Evaluation) -> str:
    """Return the README.md."""
    settings, table = evaluation.settings, build_tables(evaluation)[0]
    labels = ", ".join(score.label for score in evaluation.scores)
    repeats = f", each task {settings['group_size']} times" if settings["group_size"] > 1 else ""
    candidate_rows = [
        (
            to_single_line(score.label),
            ", ".join(f"{key} {inline_code(value)}" for key, value in score.agent.items()),
            f"{score.episodes:,}",
            f"{score.broken:,}",
            f"{score.unscored:,}",
            f"{score.contaminated:,}",
        )
        for score in evaluation.scores
    ]
    metric_rows = (
        (
            "Format compliance",
            "Every complete reply was a call that the environment accepts. Episodes without a "
            "complete reply do not count.",
        ),
        ("Cut off", "A token limit ended the episode. Shown only if there are any."),
        ("Accuracy", f"The reward was {evaluation.solved_at:g} or more."),
        ("pass@k", "Probability that one of k attempts at a task solves it; unbiased."),
        ("Mean reward", "Over the scored episodes."),
        ("Tokens in a reply", "As reported by the model or its server."),
        ("n", "Episodes that count; for a delta, pairs of them."),
    )
    versions = ", ".join(f"{name} {version}" for name, version in evaluation.versions.items())
    parts = (
        f"# {to_single_line(settings['environment'])}: {labels}",
        f"{settings['episodes']:,} episodes of {inline_code(settings['environment'])} with the "
        f"seed {settings['seed']}{repeats}, the same for every candidate.",
        _markdown_table(table),
        "\n".join(f"- {to_single_line(verdict)}" for _, verdict in evaluation.describe_verdicts()),
        describe_method(evaluation),
        "\n".join(f"- {to_single_line(note)}" for note in build_notes(evaluation)),
        "## By environment and difficulty" if evaluation.slices else None,
        *map(_markdown_table, build_slice_tables(evaluation)),
        "## Metrics",
        markdown_table(("", ""), metric_rows),
        _METHOD,
        "## Candidates",
        markdown_table(
            ("candidate", "agent", "episodes", "broken", "unscored", "excluded"), candidate_rows
        ),
        "## Reproduce",
        code_block(evaluation.command, "bash") if evaluation.command else None,
        "Settings that determine the episodes:",
        code_block(json.dumps(settings, indent=2, ensure_ascii=False), "json"),
        f"Versions: {versions}.",
    )
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown_table(table: ResultTable) -> str:
    # Titles may contain the name of an environment, which its server chooses freely.
    rows = [[to_single_line(title), *cells] for title, *cells in table.rows]
    return markdown_table(table.header, rows)
