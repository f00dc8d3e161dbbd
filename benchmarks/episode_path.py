"""Print the files and functions of Ludus through which one episode runs.

A reader who follows an episode opens these files. The oracle plays it in this process. Three
paths are shown: a whole run of `collect` with one episode, that episode alone, and one tool call.
What runs while modules are imported is not counted, nor are functions without a name.

    python benchmarks/episode_path.py                # totals of wordle
    python benchmarks/episode_path.py echo --list    # with the names
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Coroutine
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ludus
from ludus.agents.oracle import OracleAgent
from ludus.client.endpoint import connect
from ludus.rollout import Assignment, CollectConfig, run_episode
from ludus.rollout.collect import collect

PACKAGE = Path(ludus.__file__).parent


async def trace(name: str, path: Coroutine[Any, Any, Any], *, names: bool) -> Any:
    """Run a coroutine, and print what it called."""
    calls: dict[CodeType, int] = defaultdict(int)

    def record(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & CO_NEWLOCALS and not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(str(PACKAGE)):
            calls[code] += 1

    sys.setprofile(record)
    try:
        result = await path
    finally:
        sys.setprofile(None)
    by_file: dict[str, list[CodeType]] = defaultdict(list)
    for code in calls:
        by_file[str(Path(code.co_filename).relative_to(PACKAGE))].append(code)
    print(f"{name}: {len(by_file)} files, {len(calls)} functions, {sum(calls.values())} calls")
    if names:
        for file, codes in sorted(by_file.items()):
            print(f"  {file}: {', '.join(sorted(code.co_qualname for code in codes))}")
    return result


async def main(env: str, *, names: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = collect(env, Path(folder) / "run", CollectConfig(num_episodes=1))
        await trace(f"collect {env} -n 1", run, names=names)
    agent, assignment = OracleAgent(), Assignment.of(env, seed=0)
    async with connect(env).session() as session:
        episode = await trace("the episode", run_episode(session, agent, assignment), names=names)
        first = next(call for message in episode.messages for call in message.tool_calls or ())
        await session.reset(seed=0)
        function = first.function
        call = session.call(function.name, json.loads(function.arguments))
        await trace(f"its call of {function.name}", call, names=names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env", nargs="?", default="wordle")
    parser.add_argument("--list", action="store_true", help="print the names")
    options = parser.parse_args()
    asyncio.run(main(options.env, names=options.list))
