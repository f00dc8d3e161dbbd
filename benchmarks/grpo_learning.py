"""Whether Ludus learns what stock TRL learns: the reward over the steps of both, on one picture.

    python benchmarks/grpo_learning.py MODEL [--env wordle] [--steps 100] [--seeds 0 1 2]
    python benchmarks/grpo_learning.py --tiny

Both train the same weights on the same tasks with the same settings, once for each seed. Compared
are the means over the last 20 steps, seed by seed; the intervals are Student's over seeds, and over
these steps where there is only one seed. TRL's loop is left as it is: it goes on after the end of
an episode, and learns from what it says there. Beside the picture the curves are written as JSON,
after each run. `--tiny` makes a model on the spot, for which two cores will do.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ludus.train import GRPOConfig
from ludus.train.output.loss_plot import smooth

if TYPE_CHECKING:
    from benchmarks.grpo_world import PICK, Clock, ludus, stock, tiny_model
else:
    # A script finds its neighbours by their bare names.
    from grpo_world import PICK, Clock, ludus, stock, tiny_model

CHAIN_SUM = "reasoning_gym:chain_sum"
SUMS = '{"dataset_config": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}}'
LAST = 20
WAYS = {"stock TRL": stock, "Ludus": ludus}
COLOURS = {"stock TRL": "#d9632b", "Ludus": "#1f5fa8"}
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantiles of 97.5 % for one degree of freedom and more."""

Curves = dict[str, dict[str, list[float]]]
"""By way and seed."""


def main() -> None:
    given = _arguments()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    curves: Curves = {way: {} for way in WAYS}
    with TemporaryDirectory() as folder:
        model = tiny_model(Path(folder)) if given.tiny else given.model
        for seed in given.seeds:
            for way in WAYS:
                _run(curves, way, seed, given, model)
                _write(given, curves)
    _draw(curves, given)
    print(json.dumps(verdict(curves), indent=1))
    print(_table(curves))


def _run(curves: Curves, way: str, seed: int, given: Any, model: str) -> None:
    clock = Clock(f"{way}, seed {seed}")
    try:
        WAYS[way](given.env, model, _settings(given, seed), clock)
    except Exception:
        # What the others have learned is still worth a look.
        traceback.print_exc()
    curves[way][str(seed)] = [line["reward"] for line in clock.lines if "reward" in line]


def _settings(given: Any, seed: int) -> GRPOConfig:
    return GRPOConfig(
        steps=given.steps, groups=given.groups, group_size=given.group_size,
        max_episode_tokens=given.max_episode_tokens, learning_rate=given.learning_rate, seed=seed,
        task=json.loads(given.task), zero_variance_groups=given.zero_variance_groups,
        report_to="none", checkpoint_every=86_400.0,
    )  # fmt: skip


def verdict(curves: Curves) -> dict[str, Any]:
    """The last steps of both, and by how much Ludus is above TRL."""
    theirs, ours = (curves[way] for way in WAYS)
    seeds = [
        seed for seed in theirs if theirs[seed] and len(theirs[seed]) == len(ours.get(seed, ()))
    ]
    if not seeds:
        return {"seeds": [], "below": None}
    if len(seeds) > 1:
        found = {way: [fmean(curves[way][seed][-LAST:]) for seed in seeds] for way in WAYS}
    else:
        found = {way: curves[way][seeds[0]][-LAST:] for way in WAYS}
    pairs = zip(*(found[way] for way in WAYS), strict=True)
    difference = estimate([mine - other for other, mine in pairs])
    estimates = {way: estimate(values) for way, values in found.items()}
    return {
        "seeds": seeds,
        "steps": min(LAST, *(len(theirs[seed]) for seed in seeds)),
        "interval over": "seeds" if len(seeds) > 1 else "steps",
        **estimates,
        "difference": difference,
        "below": difference["high"] is not None and difference["high"] < 0,
    }


def estimate(values: Sequence[float]) -> dict[str, float | None]:
    """A mean with its 95 % interval; one value alone has none."""
    mean, n = fmean(values), len(values)
    if n < 2:
        return {"mean": mean, "low": None, "high": None}
    reach = _quantile(n - 1) * stdev(values) / sqrt(n)
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def _quantile(freedom: int) -> float:
    """Of Student's distribution; far out by its expansion around the normal one."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    return 1.960 + 2.372 / freedom + 2.822 / freedom**2


def _write(given: Any, curves: Curves) -> None:
    asked = (
        *("env", "task", "steps", "groups", "group_size", "max_episode_tokens"),
        *("learning_rate", "zero_variance_groups"),
    )
    facts = {name: getattr(given, name) for name in asked}
    facts |= {"model": "tiny" if given.tiny else given.model, "verdict": verdict(curves)}
    text = json.dumps({**facts, "reward": curves}, indent=1)
    given.out.with_suffix(".json").write_text(f"{text}\n")


def _table(curves: Curves) -> str:
    found = verdict(curves)
    lines = [f"\n| way | reward, last {found.get('steps', LAST)} steps |", "|---|---|"]
    lines += [f"| {way} | {_told(found[way])} |" for way in WAYS if way in found]
    if "difference" in found:
        words = "below" if found["below"] else "not below"
        lines.append(f"| Ludus less TRL | {_told(found['difference'], '+')}: {words} |")
    return "\n".join(lines)


def _told(found: dict[str, float], sign: str = "") -> str:
    if found["low"] is None:
        return f"{found['mean']:{sign}.3f}"
    return f"{found['mean']:{sign}.3f} ({found['low']:{sign}.3f} to {found['high']:{sign}.3f})"


def _draw(curves: Curves, given: Any) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture, because matplotlib is not installed; the curves are in the JSON file.")
        return
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for way in WAYS:
        _plot(axes, way, [curve for curve in curves[way].values() if curve])
    seeds = f"{len(given.seeds)} seed" + "s" * (len(given.seeds) > 1)
    subject = "pick a letter, a tiny model" if given.tiny else given.env
    axes.set_title(f"GRPO on {subject}: {seeds}", loc="left", fontsize=11, parse_math=False)
    axes.set(xlabel="step", ylabel="reward")
    rewards = [reward for of in curves.values() for curve in of.values() for reward in curve]
    if rewards and min(rewards) >= 0 and max(rewards) <= 1:
        axes.set_ylim(-0.02, 1.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower right")
    FigureCanvasAgg(figure).print_png(str(given.out))
    print(f"-> {given.out}, {given.out.with_suffix('.json')}")


def _plot(axes: Any, way: str, curves: list[list[float]]) -> None:
    """The mean over seeds, and between which values they all lie."""
    if not curves:
        return
    smooth = [[value for _, value in smooth(list(enumerate(curve)))] for curve in curves]
    columns = list(zip(*smooth, strict=False))
    steps = range(1, len(columns) + 1)
    mean, colour = [fmean(column) for column in columns], COLOURS[way]
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(steps, mean, color=colour, linewidth=2.0, label=way)


def _arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("model", nargs="?", help="a folder or a name, as for `ludus train`")
    asked.add_argument("--tiny", action="store_true", help="a model made on the spot instead")
    asked.add_argument("--env", help=f"what is played ({CHAIN_SUM}, with small sums)")
    asked.add_argument("--task", help="arguments of reset, as JSON")
    asked.add_argument("--steps", type=int, default=100)
    asked.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked.add_argument("--groups", type=int)
    asked.add_argument("--group-size", type=int, default=8)
    asked.add_argument("--max-episode-tokens", type=int)
    asked.add_argument("--learning-rate", type=float)
    asked.add_argument("--zero-variance-groups", default="keep", help="what Ludus does with them")
    asked.add_argument("-o", "--out", type=Path, default=Path("docs/pictures/grpo_learning.png"))
    given = asked.parse_args()
    if (given.model is None) != given.tiny:
        asked.error("name a model, or say --tiny")
    usual = _TINY if given.tiny else _USUAL
    for name, value in usual.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    given.task = given.task or (SUMS if given.env == CHAIN_SUM else "{}")
    return given


_TINY = {"env": PICK, "groups": 4, "max_episode_tokens": 64, "learning_rate": 1e-3}
_USUAL = {"env": CHAIN_SUM, "groups": 8, "max_episode_tokens": 128, "learning_rate": 1e-5}


if __name__ == "__main__":
    main()
