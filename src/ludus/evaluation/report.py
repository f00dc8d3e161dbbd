"""README.md of an evaluation: the table, what was played and how to play it again."""

from __future__ import annotations

import json

from ludus.data.markdown import code_block, inline_code, markdown_table, to_single_line
from ludus.evaluation.output_dir import CHART_FILE
from ludus.evaluation.results import Evaluation
from ludus.evaluation.table import build_notes, build_tables, describe_method


def render_report(evaluation: Evaluation) -> str:
    """The whole file."""
    sheet = build_tables(evaluation)[0]
    parts = (
        f"# {to_single_line(evaluation.settings['environment'])}: {_labels(evaluation)}",
        _introduction(evaluation),
        # A server names its environment as it likes.
        markdown_table(
            sheet.header, [[to_single_line(title), *figures] for title, *figures in sheet.rows]
        ),
        describe_method(evaluation),
        "\n".join(f"- {to_single_line(note)}" for note in build_notes(evaluation)),
        f"![The figures of every candidate]({CHART_FILE})",
        _metrics_section(evaluation),
        _candidates_section(evaluation),
        _reproduction_section(evaluation),
    )
    return "\n\n".join(filter(None, parts)) + "\n"


def _labels(evaluation: Evaluation) -> str:
    return ", ".join(score.label for score in evaluation.scores)


def _introduction(evaluation: Evaluation) -> str:
    settings = evaluation.settings
    times = f", each task {settings['group_size']} times" if settings["group_size"] > 1 else ""
    return (
        f"{settings['episodes']:,} episodes of {inline_code(settings['environment'])} with the seed "
        f"{settings['seed']}{times}, the same for every candidate."
    )


def _metrics_section(evaluation: Evaluation) -> str:
    rows = (
        (
            "Format compliance",
            "Every complete reply was a call that the environment could take. Episodes without a "
            "complete reply are left out.",
        ),
        ("Cut off", "A token limit ended the episode in the middle. Shown where there are any."),
        ("Accuracy", f"The reward was {evaluation.solved_at:g} or more."),
        ("Mean reward", "Over the episodes that were scored; of a mix, in each environment too."),
        ("Tokens in a reply", "As the model's side counted them."),
        ("n", "Episodes that were played and not left out; for a delta, pairs of them."),
    )
    method = (
        "Shares have Wilson's score interval, and their differences Newcombe's for paired data. "
        "Means, and differences of means by task, have a bootstrap's over tasks (expanded "
        "percentiles), from five tasks on that differ. Attempts at one task share the weight of "
        "one; where they came out differently, shares too have that interval. All are 95% "
        "confidence intervals."
    )
    return "## What is measured\n\n" + markdown_table(("", ""), rows) + f"\n\n{method}"


def _candidates_section(evaluation: Evaluation) -> str:
    rows = [
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
    head = ("candidate", "who", "episodes", "broken", "unscored", "known")
    return "## Who has played\n\n" + markdown_table(head, rows)


def _reproduction_section(evaluation: Evaluation) -> str:
    blocks = [code_block(evaluation.command, "bash")] if evaluation.command else []
    text = json.dumps(evaluation.settings, indent=2, ensure_ascii=False)
    used = ", ".join(f"{name} {found}" for name, found in evaluation.versions.items())
    blocks += [
        "The settings that decide what was played:",
        code_block(text, "json"),
        f"With {used}.",
    ]
    return "\n\n".join(["## Play it again", *blocks])
