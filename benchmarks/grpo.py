"""Seconds per step of GRPO: stock TRL with `environment_factory`, and Ludus, on the same of all.

    python benchmarks/grpo.py MODEL [--steps 3] [--ours 10] [--only chain_sum wordle slow]

Both train the same weights on the same tasks, prompts and tools: 8 groups of 8, at most 128 tokens
(512 in wordle), temperature 1, bf16 over float32 weights, AdamW fused, no KL. Ludus keeps groups
with equal rewards, as TRL does, so that both learn from as many rows; its last row is what it does
if left alone. The first step of each is left out. By phase, in seconds per step:

  rollouts   reset, generate, tools and rewards of TRL's; playing, of Ludus's
  model      of it, while the model was being asked
  training   all the rest of the step

The table grows with each run, so that what is known is shown whatever becomes of the next. `--tiny`
makes a model on the spot, to see that it all works. The model should know how to call tools: of
one that never does, TRL generates a single turn.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ludus.train import GRPOConfig

if TYPE_CHECKING:
    from benchmarks.grpo_world import SLOW, Clock, ludus, stock, tiny_model
    from benchmarks.with_gpu import need_gpu
else:
    # A script finds its neighbours by their bare names.
    from grpo_world import SLOW, Clock, ludus, stock, tiny_model
    from with_gpu import need_gpu

SUMS = {"dataset_config": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}}
SCENARIOS: dict[str, tuple[str, dict[str, Any], int]] = {
    "chain_sum": ("reasoning_gym:chain_sum", SUMS, 128),
    "wordle": ("wordle", {}, 512),
    "slow": (SLOW, {}, 128),
}
"""What is played, its task, and how many tokens an episode may have. TRL counts what the
environment writes among them, so a game of six guesses takes more than the model says in it."""
RATE = 1e-6
FIGURES = (
    "time/rollout", "time/train", "time/step", "time/model", "time/environment", "equal", "trained",
    "length", "turns", "done", "time/decode", "reused", "read",
)  # fmt: skip
STOCK, OURS, LEFT_ALONE = "stock TRL", "Ludus", "Ludus, equal groups left out"


@dataclass(frozen=True, slots=True)
class Result:
    scenario: str
    way: str
    error: str = ""
    steps: list[float] = field(default_factory=list)
    """Seconds of each step but the first."""
    rollouts: float = 0.0
    model: float | None = None
    reward: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    """Figures of a step, seconds and others."""

    @property
    def seconds(self) -> float:
        return fmean(self.steps) if self.steps else float("nan")


def main() -> None:
    given = _arguments()
    results: list[Result] = []
    with TemporaryDirectory() as folder:
        model = tiny_model(Path(folder), SLOW) if given.tiny else given.model
        for scenario in given.only:
            for way, measure in WAYS.items():
                results.append(_tried(scenario, way, measure, given, model))
                _show(results, given.out)


def _tried(scenario: str, way: str, measure: Any, given: Any, model: str) -> Result:
    print(f"\n{scenario}, {way}", flush=True)
    try:
        result: Result = measure(scenario, way, given, model)
        return result
    except Exception as error:
        traceback.print_exc()
        return Result(scenario, way, " ".join(f"{type(error).__name__}: {error}".split())[:200])


def _stock(scenario: str, way: str, given: Any, model: str) -> Result:
    environment, *_ = SCENARIOS[scenario]
    clock, phases = Clock(way), Phases()
    settings = _settings(scenario, given, given.steps, zero_variance_groups="keep")
    stock(environment, model, settings, clock, phases.attach)
    parts = phases.per_step(clock.times)
    generated = parts["first turn"] + parts["later turns"]
    played = sum(parts[name] for name in ("reset", "tools", "rewards")) + generated
    names = ("completions/mean_length", "tools/call_frequency", "frac_reward_zero_std")
    parts |= _means(clock, names)
    return Result(
        scenario, way, steps=_steps(clock), rollouts=played, model=generated,
        reward=_means(clock, ("reward",))["reward"], parts=parts,
    )  # fmt: skip


def _ours(scenario: str, way: str, given: Any, model: str) -> Result:
    environment, *_ = SCENARIOS[scenario]
    clock = Clock(way)
    mode = "keep" if way == OURS else "skip"
    settings = _settings(scenario, given, given.ours, zero_variance_groups=mode)
    ludus(environment, model, settings, clock)
    parts = _means(clock, FIGURES)
    sampled = parts["length"] * given.groups * given.group_size
    parts["sampled tokens/s"] = sampled / parts["time/decode"]
    return Result(
        scenario, way, steps=_steps(clock), rollouts=parts["time/rollout"],
        model=parts["time/decode"], reward=_means(clock, ("reward",))["reward"], parts=parts,
    )  # fmt: skip


WAYS: dict[str, Callable[..., Result]] = {STOCK: _stock, OURS: _ours, LEFT_ALONE: _ours}


def _settings(scenario: str, given: Any, steps: int, **more: Any) -> GRPOConfig:
    _, task, tokens = SCENARIOS[scenario]
    return GRPOConfig(
        steps=steps, groups=given.groups, group_size=given.group_size,
        max_episode_tokens=given.max_episode_tokens or tokens, learning_rate=RATE, task=task,
        report_to="none", checkpoint_every=86_400.0, overrides={"optim": "adamw_torch_fused"},
        **more,
    )  # fmt: skip


class Phases:
    """Where a step of TRL's goes, by timers around its methods and those of the environment."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, float, float]] = []

    def attach(self, trainer: Any, kind: Any) -> None:
        trainer._generate_single_turn = self._timed(self._turn, trainer._generate_single_turn)
        trainer._calculate_rewards = self._timed(lambda: "rewards", trainer._calculate_rewards)
        kind.reset = self._timed(lambda: "reset", kind.reset)
        for tool in kind._tools:
            method = self._timed(lambda: "tools", getattr(kind, tool.name))
            setattr(kind, tool.name, method)

    def per_step(self, ends: list[float]) -> dict[str, float]:
        """Means over the steps after the first."""
        sums: defaultdict[str, float] = defaultdict(float)
        for name, began, ended in self._spans:
            if began >= ends[0]:
                sums[name] += ended - began
        count = len(ends) - 1
        step = (ends[-1] - ends[0]) / count
        names = ("reset", "first turn", "tools", "later turns", "rewards")
        found = {name: sums[name] / count for name in names}
        return {**found, "training": step - sum(found.values()), "step": step}

    def _turn(self) -> str:
        """Every step begins with resets, and its first turn is the next thing generated."""
        last = next((name for name, *_ in reversed(self._spans) if name != "tools"), "reset")
        return "later turns" if last in ("first turn", "later turns") else "first turn"

    def _timed(self, name: Callable[[], str], call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*given: Any, **named: Any) -> Any:
            phase, began = name(), time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                self._spans.append((phase, began, time.perf_counter()))

        return timed


def _steps(clock: Clock) -> list[float]:
    pairs = zip(clock.times, clock.times[1:], strict=False)
    return [after - before for before, after in pairs]


def _means(clock: Clock, names: Sequence[str]) -> dict[str, float]:
    """Of the logged figures that are there, over the steps after the first."""
    lines = clock.lines[1:]
    found = {name: [line[name] for line in lines if name in line] for name in names}
    return {name: fmean(values) for name, values in found.items() if values}


def _show(results: list[Result], out: Path | None) -> None:
    newest = results[-1]
    if newest.steps:
        print("steps:", ", ".join(f"{each:.2f}" for each in newest.steps))
        print("per step:", ", ".join(f"{name} {value:.4g}" for name, value in newest.parts.items()))
    print("\n| scenario | way | s/step | rollouts | of it model | training | times faster |")
    print("|---|---|---|---|---|---|---|")
    for result in results:
        print("|", " | ".join([result.scenario, result.way, *_cells(result, results)]), "|")
    print(flush=True)
    if out is not None:
        out.write_text(json.dumps([asdict(result) for result in results], indent=1))


def _cells(result: Result, results: list[Result]) -> list[str]:
    if not result.steps:
        return [result.error.replace("|", "/"), *["-"] * 4]
    theirs = next(
        (one for one in results if one.scenario == result.scenario and one.way == STOCK), result
    )
    times = f"{theirs.seconds / result.seconds:.1f}" if theirs.steps else "-"
    model = f"{result.model:.2f}" if result.model is not None else "-"
    training = result.seconds - result.rollouts
    numbers = [f"{result.seconds:.2f}", f"{result.rollouts:.2f}", model, f"{training:.2f}"]
    return [*numbers, "1" if result.way == STOCK else times]


def _arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("model", nargs="?", help="a folder or a name, as for `ludus train`")
    asked.add_argument("--tiny", action="store_true", help="a model made on the spot instead")
    asked.add_argument("--steps", type=int, default=3, help="of stock TRL")
    asked.add_argument("--ours", type=int, default=10, help="steps of Ludus")
    asked.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    asked.add_argument("--groups", type=int, default=8)
    asked.add_argument("--group-size", type=int, default=8)
    asked.add_argument("--max-episode-tokens", type=int)
    asked.add_argument("-o", "--out", type=Path, help="a JSON file for all figures")
    given = asked.parse_args()
    if (given.model is None) != given.tiny:
        asked.error("name a model, or say --tiny")
    if min(given.steps, given.ours) < 2:
        asked.error("the first step is left out, so that there must be two")
    if not given.tiny:
        need_gpu("--tiny shows that it works.")
    return given


if __name__ == "__main__":
    main()
