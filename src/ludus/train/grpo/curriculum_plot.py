"""The curriculum in the plot of a GRPO run: which buckets each step drew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.data.training_log import read_buckets
from ludus.train.output.loss_plot import shorten_plot_title

_MAX_NAMED_BUCKETS = 12
_MAX_LABEL_CHARS = 24
_COLORS = "Blues"


def plot_buckets(axes: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    """A row for each bucket, as dark at each step as its share of the step's groups."""
    logged = [(line["step"], buckets) for line in lines if (buckets := read_buckets(line))]
    labels = [*dict.fromkeys(label for _, buckets in logged for label in buckets)]
    rows = {label: row for row, label in enumerate(labels)}
    shares = [[0.0] * len(logged) for _ in labels]
    for column, (_, buckets) in enumerate(logged):
        total = sum(bucket.groups for bucket in buckets.values()) or 1.0
        for label, bucket in buckets.items():
            shares[rows[label]][column] = bucket.groups / total
    steps = [step for step, _ in logged]
    edges = [*(step - 0.5 for step in steps), steps[-1] + 0.5]
    heights = [row - 0.5 for row in range(len(labels) + 1)]
    axes.pcolormesh(edges, heights, shares, cmap=_COLORS, vmin=0.0, vmax=1.0)
    axes.set_ylabel("curriculum")
    names = labels if len(labels) <= _MAX_NAMED_BUCKETS else []
    axes.set_yticks(
        range(len(names)),
        [shorten_plot_title(name, _MAX_LABEL_CHARS).replace("$", r"\$") for name in names],
        fontsize=8,
    )
    axes.spines[["top", "right"]].set_visible(False)
