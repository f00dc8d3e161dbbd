"""Find the environments with enough different tasks to hold some out."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from ludus.data.tool_schema import JsonObject
from ludus.environment.task_splits import Split, TaskChoice, key_digest, split_of
from ludus.errors import CapacityReached, LudusError
from ludus.protocol.types import StepResult
from ludus.rollout.plan import Plan

MIN_TASKS, MAX_RESETS = 24, 128
"""Different tasks that an environment needs for some to be held out; resets to find them."""
RESET_TIMEOUT_S = 120.0


async def find_splits(
    plan: Plan, split: TaskChoice, warn: Callable[[str], None]
) -> dict[str, Split]:
    """Assign the split to each environment with enough different tasks to hold some out.

    The tasks tried are always the same, so that all stages decide alike. Warns about the other
    environments, unless the tasks are for training.
    """
    if split == "all" or plan.tasks:
        return {}
    probe, splits = replace(plan, seed=0, group_size=1, splits={}), dict[str, Split]()
    for spec, endpoint in plan.endpoints.items():
        if "#" in spec:
            continue  # The task file of an MCP server is played as it is.
        numbers = (at for at in range(64 * MAX_RESETS) if probe.spec_of(at) == spec)
        digests = list[str]()
        try:
            async with endpoint.endpoint.session() as session:
                for at in islice(numbers, MAX_RESETS):
                    if _has_enough(digests) is not None:
                        break
                    async with asyncio.timeout(RESET_TIMEOUT_S):
                        digests.append(identify_task(await session.reset(**probe[at].task)))
        except CapacityReached:
            splits[spec] = split  # Other clients use the server; most environments have many tasks.
            continue
        except (LudusError, TimeoutError):
            pass  # The preflight check or the episodes will say what is wrong.
        if _has_enough(digests):
            splits[spec] = split
        elif len({*digests}) != 1 and {split_of(each) for each in digests} <= {split}:
            pass  # The task's arguments select the split: `pool=test`.
        elif split != "train":
            few = f"has too few different tasks ({len({*digests})} in {len(digests)} draws)"
            if len({*digests}) == 1:
                few = "begins all tasks alike, and has no `task_key()` that tells them apart"
            warn(f"{endpoint.name} {few}: none are held out, training and evaluation play the same")
    return splits


def _has_enough(digests: Sequence[str]) -> bool | None:
    """Whether these are enough tasks to hold some out; None if more draws are needed to tell."""
    different = {*digests}
    counts = Counter(map(split_of, different))
    if len(different) >= MIN_TASKS and min(counts["validation"], counts["test"]) > 1:
        return True
    few = len(digests) >= 2 * MIN_TASKS and len(different) < MIN_TASKS / 2
    one = len(digests) >= MIN_TASKS / 3 and len(different) == 1
    return False if few or one or len(digests) == MAX_RESETS else None


def identify_task(first: StepResult[JsonObject]) -> str:
    """The digest that identifies a task, from the result of its reset."""
    if (digest := first.task_key) is not None:
        return digest
    content = first.content
    return key_digest(content if isinstance(content, str) else json.dumps(content, default=str))
