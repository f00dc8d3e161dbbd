"""Collect episodes from two environments at once, and keep the ones that were solved.

python examples/collect_and_filter.py

The environments' own solutions play, so this needs no key and no network. Run it again: nothing
is played twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import ludus


async def main() -> None:
    environments = ludus.mix({"wordle": 0.3, "reasoning_gym:chain_sum": 0.7})
    config = ludus.CollectConfig(num_episodes=100)
    result = await ludus.collect(environments, Path("runs/example"), config)
    episodes = list(ludus.episodes(result.folder / "episodes.jsonl"))
    solved = [episode for episode in episodes if episode.reward == 1.0]
    print(f"{result.new_episodes} episodes were played now; {len(episodes)} are in {result.folder}")
    for environment, count in Counter(episode.environment for episode in solved).items():
        print(f"  {environment}: {count} solved")
    last = solved[-1]
    print(f"\nOne of them, {last.episode_id}:")
    for message in last.messages[1:]:
        calls = [
            f"{call.function.name}{call.function.arguments}" for call in message.tool_calls or ()
        ]
        print(f"  {message.role:>9}  {message.text or ' '.join(calls)}")


if __name__ == "__main__":
    asyncio.run(main())
