"""The floor of every environment's reward: what players earn that do not try to solve the task.

    python benchmarks/reward_floors.py [ENV ...] [--seeds 64] [--patience 6]

The players are those of `ludus check`: random calls, constants, copies of the prompt, formulas of
its numbers and the like. All are tried on a quarter of the seeds, and the best of them play on. The
table has the mean return of the oracle ("-" if there is none), the best player and its mean, the
tasks on which it is within a tenth of the oracle (or of the top reward), and the tasks. Slow
environments are played for fewer seeds: after 10 s, times `--patience`, no more than five.

By default these are all data sets of reasoning_gym, the other environments that ship, some games of
OpenSpiel against an opponent that plays at random, and one level of every game of TextArena.
Environments that lack something on this machine are listed below the table.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Iterator
from statistics import fmean

from ludus.check.reward_audit import RewardAudit, audit_environment
from ludus.data.interval_estimates import MIN_SAMPLES
from ludus.environment.registry import registered_environments
from ludus.envs.reasoning_gym import ReasoningGym
from ludus.errors import LudusError

SERVED = {"mcp", "mcp+http", "mcp+https"}
"""Environments that need the name of a server."""
GAMES = ("catch", "tic_tac_toe", "connect_four", "nim", "kuhn_poker", "leduc_poker", "blackjack")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environments", nargs="*", metavar="ENV")
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--patience", type=float, default=6.0)
    args = parser.parse_args()
    print("| environment | oracle | best cheap player | its mean | at the top | tasks |")
    print("|---|---:|---|---:|---:|---:|")
    failures = []
    for spec in args.environments or environments():
        try:
            audit = asyncio.run(audit_environment(spec, seeds=args.seeds, patience=args.patience))
        except LudusError as error:
            failures.append(f"{spec}: {error}")
        else:
            if audit.seeds < MIN_SAMPLES:
                failures.append(f"{spec}: too slow, {audit.seeds} seeds")
            else:
                print(row(spec, audit), flush=True)
    print("", *failures, sep="\n")


def environments() -> Iterator[str]:
    for name in sorted(registered_environments().keys() - SERVED):
        if name == "reasoning_gym":
            yield from (f"{name}:{variant}" for variant in ReasoningGym.variants())
        elif name == "openspiel":
            yield from (f"{name}:{game}" for game in GAMES)
        elif name == "textarena":
            from ludus.envs.textarena import TextArena

            # The first level of each game has no suffix.
            levels = TextArena.variants()
            yield from (f"{name}:{level}" for level in levels if level.endswith("-v0"))
        else:
            yield name


def row(spec: str, audit: RewardAudit) -> str:
    best = audit.compare()[0]
    returns = audit.reference_returns[: audit.seeds]
    has_oracle = audit.reference == "oracle"
    oracle = f"{fmean(returns):.2f}" if has_oracle else "-"
    tops = "-" if math.isnan(returns[0]) else str(best.tops)
    # Of those that play on, none may be the best.
    player = best.player if best.mean > min(each.mean for each in audit.compare()) else "several"
    return f"| `{spec}` | {oracle} | {player} | {best.mean:.2f} | {tops} | {audit.seeds} |"


if __name__ == "__main__":
    main()
