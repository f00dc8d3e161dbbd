"""Seconds per GRPO step: TRL with `environment_factory`, with and without vLLM, and Ludus.

    python benchmarks/grpo.py MODEL [--groups 64] [--steps 3] [--ludus-steps 10] [--only wordle]

All train the same weights on the same tasks, prompts and tools: groups of 8, at most 128 tokens
(512 in wordle), temperature 1, bf16 over float32 weights, fused AdamW, no KL. Ludus keeps
zero-variance groups, as TRL does, so that all train on the same number of rows; the last row shows
Ludus's default, which skips them. TRL trains on 64 rows at once. Each variant has a process to
itself; the first step of each run is not counted. vLLM, in the trainer's process, is measured where
it is installed. Seconds per step:

  rollouts   reset, generation, tools and rewards
  model      the part of it in which the model generates
  training   the rest of the step

The table is printed after each run. `--tiny` trains a tiny model first, to check that everything
works. The model should be able to call tools: otherwise TRL generates a single turn.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ludus.train import GRPOConfig

if TYPE_CHECKING:
    from benchmarks.gpu_check import require_gpu
    from benchmarks.grpo_runs import SLOW, StepTimer, run_ludus, run_trl, train_tiny_model
else:
    # Scripts import modules of their own folder by bare names.
    from gpu_check import require_gpu
    from grpo_runs import SLOW, StepTimer, run_ludus, run_trl, train_tiny_model

SUMS = {"dataset_config": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}}
SCENARIOS: dict[str, tuple[str, dict[str, Any], int]] = {
    "chain_sum": ("reasoning_gym:chain_sum", SUMS, 128),
    "wordle": ("wordle", {}, 512),
    "slow": (SLOW, {}, 128),
}
"""Environment, task and tokens per episode. TRL counts the environment's tokens too, so a game of
six guesses needs more than the model samples in it."""
LEARNING_RATE = 1e-6
LOGGED_METRICS = (
    "time/rollout", "time/train", "time/step", "time/model", "time/environment",
    "zero_variance", "trained", "length", "turns", "done",
    "time/decode", "reused",
)  # fmt: skip
STOCK, STOCK_VLLM, LUDUS_VLLM = "TRL", "TRL with vLLM", "Ludus with vLLM"
LUDUS, LUDUS_DEFAULT = "Ludus", "Ludus, zero-variance groups skipped"
VARIANTS = (STOCK, STOCK_VLLM, LUDUS_VLLM, LUDUS, LUDUS_DEFAULT)


@dataclass(frozen=True, slots=True)
class Result:
    scenario: str
    variant: str
    error: str = ""
    steps: list[float] = field(default_factory=list)
    """Seconds of each step except the first."""
    rollouts: float = 0.0
    model: float | None = None
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    """Means over the steps except the first."""
    peak_gib: float = 0.0
    """The most memory that PyTorch held."""

    @property
    def seconds(self) -> float:
        return fmean(self.steps) if self.steps else float("nan")


def main() -> None:
    args = _parse_args()
    results: list[Result] = []
    with TemporaryDirectory() as folder:
        model = train_tiny_model(Path(folder), SLOW) if args.tiny else args.model
        for scenario in args.only:
            for variant in VARIANTS:
                if "vLLM" in variant and find_spec("vllm") is None:
                    continue
                results.append(_try_measure(scenario, variant, args, model))
                _print_results(results, args.out)


def _try_measure(scenario: str, variant: str, args: Any, model: str) -> Result:
    print(f"\n{scenario}, {variant}", flush=True)
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            return process.submit(_measure, scenario, variant, args, model).result()
    except Exception as error:
        traceback.print_exc()
        return Result(scenario, variant, " ".join(f"{type(error).__name__}: {error}".split())[:200])


def _measure(scenario: str, variant: str, args: Any, model: str) -> Result:
    import torch

    measure = _measure_trl if variant in (STOCK, STOCK_VLLM) else _measure_ludus
    result = measure(scenario, variant, args, model)
    peak = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    return replace(result, peak_gib=peak / 2**30)


def _measure_trl(scenario: str, variant: str, args: Any, model: str) -> Result:
    environment, *_ = SCENARIOS[scenario]
    timer, phases = StepTimer(variant), PhaseTimer()
    config = _build_config(scenario, variant, args, args.steps, zero_variance_groups="keep")
    run_trl(environment, model, config, timer, phases.attach)
    metrics = phases.per_step(timer.times)
    generated = metrics["first turn"] + metrics["later turns"]
    rollouts = sum(metrics[name] for name in ("reset", "tools", "rewards")) + generated
    names = ("completions/mean_length", "tools/call_frequency", "frac_reward_zero_std")
    metrics |= _means(timer, names)
    return Result(
        scenario, variant, steps=_step_seconds(timer), rollouts=rollouts, model=generated,
        reward=_means(timer, ("reward",))["reward"], metrics=metrics,
    )  # fmt: skip


def _measure_ludus(scenario: str, variant: str, args: Any, model: str) -> Result:
    environment, *_ = SCENARIOS[scenario]
    timer = StepTimer(variant)
    mode = "skip" if variant == LUDUS_DEFAULT else "keep"
    config = _build_config(scenario, variant, args, args.ludus_steps, zero_variance_groups=mode)
    run_ludus(environment, model, config, timer)
    metrics = _means(timer, LOGGED_METRICS)
    sampled = metrics["length"] * args.groups * args.group_size
    metrics["sampled tokens/s"] = sampled / metrics["time/decode"]
    return Result(
        scenario, variant, steps=_step_seconds(timer), rollouts=metrics["time/rollout"],
        model=metrics["time/decode"], reward=_means(timer, ("reward",))["reward"], metrics=metrics,
    )  # fmt: skip


def _build_config(scenario: str, variant: str, args: Any, steps: int, **options: Any) -> GRPOConfig:
    _, task, tokens = SCENARIOS[scenario]
    return GRPOConfig(
        steps=steps, groups=args.groups, group_size=args.group_size,
        max_episode_tokens=args.max_episode_tokens or tokens, task=task,
        learning_rate=LEARNING_RATE, eval_every=0,
        vllm_mode="colocate" if "vLLM" in variant else None,
        report_to="none", checkpoint_every=86_400.0, overrides={"optim": "adamw_torch_fused"},
        **options,
    )  # fmt: skip


class PhaseTimer:
    """Times the phases of TRL's steps, by wrapping methods of trainer and environment."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, float, float]] = []

    def attach(self, trainer: Any, env_class: Any) -> None:
        trainer._generate_single_turn = self._timed(self._turn_phase, trainer._generate_single_turn)
        trainer._calculate_rewards = self._timed(lambda: "rewards", trainer._calculate_rewards)
        env_class.reset = self._timed(lambda: "reset", env_class.reset)
        for tool in env_class._tools:
            method = self._timed(lambda: "tools", getattr(env_class, tool.name))
            setattr(env_class, tool.name, method)

    def per_step(self, ends: list[float]) -> dict[str, float]:
        """Means over the steps after the first."""
        sums: defaultdict[str, float] = defaultdict(float)
        for name, start, end in self._spans:
            if start >= ends[0]:
                sums[name] += end - start
        count = len(ends) - 1
        step = (ends[-1] - ends[0]) / count
        names = ("reset", "first turn", "tools", "later turns", "rewards")
        phases = {name: sums[name] / count for name in names}
        return {**phases, "training": step - sum(phases.values()), "step": step}

    def _turn_phase(self) -> str:
        """Every step starts with resets, so the first generation after one is a first turn."""
        last = next((name for name, *_ in reversed(self._spans) if name != "tools"), "reset")
        return "later turns" if last in ("first turn", "later turns") else "first turn"

    def _timed(self, name: Callable[[], str], call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*call_args: Any, **kwargs: Any) -> Any:
            phase, start = name(), time.perf_counter()
            try:
                return call(*call_args, **kwargs)
            finally:
                self._spans.append((phase, start, time.perf_counter()))

        return timed


def _step_seconds(timer: StepTimer) -> list[float]:
    pairs = zip(timer.times, timer.times[1:], strict=False)
    return [after - before for before, after in pairs]


def _means(timer: StepTimer, names: Sequence[str]) -> dict[str, float]:
    """Means of logged metrics over the steps after the first."""
    lines = timer.lines[1:]
    values = {name: [line[name] for line in lines if name in line] for name in names}
    return {name: fmean(series) for name, series in values.items() if series}


def _print_results(results: list[Result], out: Path | None) -> None:
    newest = results[-1]
    if newest.steps:
        print("steps:", ", ".join(f"{each:.2f}" for each in newest.steps))
        print(
            "per step:", ", ".join(f"{name} {value:.4g}" for name, value in newest.metrics.items())
        )
    print("\n| scenario | variant | s/step | rollouts | of it model | training | GiB | speedup |")
    print("|---|---|---|---|---|---|---|---|")
    for result in results:
        print("|", " | ".join([result.scenario, result.variant, *_cells(result, results)]), "|")
    print(flush=True)
    if out is not None:
        out.write_text(json.dumps([asdict(result) for result in results], indent=1))


def _cells(result: Result, results: list[Result]) -> list[str]:
    if not result.steps:
        return [result.error.replace("|", "/"), *["-"] * 5]
    same_scenario = (other for other in results if other.scenario == result.scenario)
    baseline = next((other for other in same_scenario if other.variant == STOCK), result)
    speedup = f"{baseline.seconds / result.seconds:.1f}" if baseline.steps else "-"
    model = f"{result.model:.2f}" if result.model is not None else "-"
    training = result.seconds - result.rollouts
    numbers = [f"{result.seconds:.2f}", f"{result.rollouts:.2f}", model, f"{training:.2f}"]
    numbers.append(f"{result.peak_gib:.1f}")
    return [*numbers, "1" if result.variant == STOCK else speedup]


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", help="folder or name, as for `ludus train`")
    parser.add_argument("--tiny", action="store_true", help="train a tiny model instead")
    parser.add_argument("--steps", type=int, default=3, help="steps of stock TRL")
    parser.add_argument("--ludus-steps", type=int, default=10, help="steps of Ludus")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-episode-tokens", type=int)
    parser.add_argument("-o", "--out", type=Path, help="JSON file for all results")
    args = parser.parse_args()
    if (args.model is None) != args.tiny:
        parser.error("give a model or --tiny")
    if min(args.steps, args.ludus_steps) < 2:
        parser.error("at least two steps are needed, because the first is not counted")
    if not args.tiny:
        require_gpu("Use --tiny to check that it works.")
    return args


if __name__ == "__main__":
    main()
