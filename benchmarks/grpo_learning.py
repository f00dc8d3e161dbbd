"""Learning curves of stock TRL and Ludus: the reward over the steps of both, in one plot.

    python benchmarks/grpo_learning.py MODEL [--env wordle] [--steps 100] [--seeds 0 1 2]
    python benchmarks/grpo_learning.py --tiny

Both train the same weights on the same tasks with the same config, once for each seed. The means
over the last 20 steps are compared, paired by seed, with Student's t intervals over seeds (over
steps if there is only one seed). TRL's loop is unchanged: it continues after the end of an episode
and trains on what the model says there. The curves are also written as JSON, after each run.
`--tiny` trains a tiny model first, for which two cores are enough.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ludus.train import GRPOConfig
from ludus.train.output.training_plots import smooth

if TYPE_CHECKING:
    from benchmarks.grpo_runs import PICK, StepTimer, run_ludus, run_trl, train_tiny_model
    from benchmarks.seed_interval import interval_half_width
else:
    # Scripts import modules of their own folder by bare names.
    from grpo_runs import PICK, StepTimer, run_ludus, run_trl, train_tiny_model
    from seed_interval import interval_half_width

CHAIN_SUM = "reasoning_gym:chain_sum"
SUMS = '{"dataset_config": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}}'
LAST_STEPS = 20
VARIANTS = {"stock TRL": run_trl, "Ludus": run_ludus}
COLOURS = {"stock TRL": "#d9632b", "Ludus": "#1f5fa8"}

Curves = dict[str, dict[str, list[float]]]
"""Rewards per step, by variant and seed."""


def main() -> None:
    args = _parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    curves: Curves = {variant: {} for variant in VARIANTS}
    with TemporaryDirectory() as folder:
        model = train_tiny_model(Path(folder)) if args.tiny else args.model
        for seed in args.seeds:
            for variant in VARIANTS:
                _run_variant(curves, variant, seed, args, model)
                _write(args, curves)
    _draw(curves, args)
    print(json.dumps(compare(curves), indent=1))
    print(_table(curves))


def _run_variant(curves: Curves, variant: str, seed: int, args: Any, model: str) -> None:
    timer = StepTimer(f"{variant}, seed {seed}")
    try:
        VARIANTS[variant](args.env, model, _build_config(args, seed), timer)
    except Exception:
        # The other runs are still worth showing.
        traceback.print_exc()
    curves[variant][str(seed)] = [line["reward"] for line in timer.lines if "reward" in line]


def _build_config(args: Any, seed: int) -> GRPOConfig:
    return GRPOConfig(
        steps=args.steps, groups=args.groups, group_size=args.group_size,
        max_episode_tokens=args.max_episode_tokens, learning_rate=args.learning_rate, seed=seed,
        task=json.loads(args.task), report_to="none",
        zero_variance_groups=args.zero_variance_groups,
        checkpoint_every=86_400.0,
    )  # fmt: skip


def compare(curves: Curves) -> dict[str, Any]:
    """Mean rewards of the last steps, and the difference of Ludus and TRL."""
    trl, ludus = (curves[variant] for variant in VARIANTS)
    seeds = [seed for seed in trl if trl[seed] and len(trl[seed]) == len(ludus.get(seed, ()))]
    if not seeds:
        return {"seeds": [], "below": None}
    if len(seeds) > 1:
        values = {
            variant: [fmean(curves[variant][seed][-LAST_STEPS:]) for seed in seeds]
            for variant in VARIANTS
        }
    else:
        values = {variant: curves[variant][seeds[0]][-LAST_STEPS:] for variant in VARIANTS}
    pairs = zip(*(values[variant] for variant in VARIANTS), strict=True)
    difference = estimate([ludus_value - trl_value for trl_value, ludus_value in pairs])
    estimates = {variant: estimate(series) for variant, series in values.items()}
    return {
        "seeds": seeds,
        "steps": min(LAST_STEPS, *(len(trl[seed]) for seed in seeds)),
        "interval over": "seeds" if len(seeds) > 1 else "steps",
        **estimates,
        "difference": difference,
        "below": difference["high"] is not None and difference["high"] < 0,
    }


def estimate(values: Sequence[float]) -> dict[str, float | None]:
    """The mean with its 95 % interval; a single value has none."""
    mean = fmean(values)
    if len(values) < 2:
        return {"mean": mean, "low": None, "high": None}
    margin = interval_half_width(values)
    return {"mean": mean, "low": mean - margin, "high": mean + margin}


def _write(args: Any, curves: Curves) -> None:
    names = (
        *("env", "task", "steps", "groups", "group_size", "max_episode_tokens"),
        *("learning_rate", "zero_variance_groups"),
    )
    record = {name: getattr(args, name) for name in names}
    record |= {"model": "tiny" if args.tiny else args.model, "verdict": compare(curves)}
    text = json.dumps({**record, "reward": curves}, indent=1)
    args.out.with_suffix(".json").write_text(f"{text}\n")


def _table(curves: Curves) -> str:
    result = compare(curves)
    lines = [f"\n| variant | reward, last {result.get('steps', LAST_STEPS)} steps |", "|---|---|"]
    lines += [
        f"| {variant} | {_format_estimate(result[variant])} |"
        for variant in VARIANTS
        if variant in result
    ]
    if "difference" in result:
        words = "below" if result["below"] else "not below"
        difference = _format_estimate(result["difference"], "+")
        lines.append(f"| Ludus minus TRL | {difference}: {words} |")
    return "\n".join(lines)


def _format_estimate(estimate: dict[str, float], sign: str = "") -> str:
    mean = f"{estimate['mean']:{sign}.3f}"
    if estimate["low"] is None:
        return mean
    return f"{mean} ({estimate['low']:{sign}.3f} to {estimate['high']:{sign}.3f})"


def _draw(curves: Curves, args: Any) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("No plot, because matplotlib is not installed; the curves are in the JSON file.")
        return
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for variant in VARIANTS:
        _plot(axes, variant, [curve for curve in curves[variant].values() if curve])
    seeds = f"{len(args.seeds)} seed" + "s" * (len(args.seeds) > 1)
    subject = "pick a letter, a tiny model" if args.tiny else args.env
    axes.set_title(f"GRPO on {subject}: {seeds}", loc="left", fontsize=11, parse_math=False)
    axes.set(xlabel="step", ylabel="reward")
    rewards = [
        reward for by_seed in curves.values() for curve in by_seed.values() for reward in curve
    ]
    if rewards and min(rewards) >= 0 and max(rewards) <= 1:
        axes.set_ylim(-0.02, 1.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower right")
    FigureCanvasAgg(figure).print_png(str(args.out))
    print(f"-> {args.out}, {args.out.with_suffix('.json')}")


def _plot(axes: Any, variant: str, curves: list[list[float]]) -> None:
    """The mean over seeds, and the range of all seeds."""
    if not curves:
        return
    smoothed = [[value for _, value in smooth(list(enumerate(curve)))] for curve in curves]
    columns = list(zip(*smoothed, strict=False))
    steps = range(1, len(columns) + 1)
    mean, colour = [fmean(column) for column in columns], COLOURS[variant]
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(steps, mean, color=colour, linewidth=2.0, label=variant)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", help="folder or name, as for `ludus train`")
    parser.add_argument("--tiny", action="store_true", help="train a tiny model instead")
    parser.add_argument("--env", help=f"environment (default {CHAIN_SUM}, with small sums)")
    parser.add_argument("--task", help="arguments of reset, as JSON")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--groups", type=int)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-episode-tokens", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--zero-variance-groups", default="keep", help="what Ludus does with them")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/pictures/grpo_learning.png"))
    args = parser.parse_args()
    if (args.model is None) != args.tiny:
        parser.error("give a model or --tiny")
    defaults = _TINY_DEFAULTS if args.tiny else _DEFAULTS
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.task = args.task or (SUMS if args.env == CHAIN_SUM else "{}")
    return args


_TINY_DEFAULTS = {"env": PICK, "groups": 4, "max_episode_tokens": 64, "learning_rate": 1e-3}
_DEFAULTS = {"env": CHAIN_SUM, "groups": 8, "max_episode_tokens": 128, "learning_rate": 1e-5}


if __name__ == "__main__":
    main()
