"""Run folders with many generated episodes, written fast: few templates, many lines.

`python tests/generated_runs.py FOLDER --episodes 100000` writes one for a look with `ludus view`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from ludus.data.episode import Episode, EpisodeFault, StopReason, Timing, Tokens, Usage
from ludus.data.messages import Call, Function, Message
from ludus.data.run_folder import RunFolder

GROUP_SIZE = 8
_MASK_VALUES: tuple[Literal[0, 1], ...] = (0, 1)
_NUM_TEMPLATES = 64
_START = datetime(2026, 1, 1, tzinfo=UTC)
_RULES = (
    "You play a game of numbers. Each question is a chain of additions and subtractions. Work "
    "through it one term at a time, say what you do, and submit the result with the tool `answer`. "
    "You have several attempts, and a wrong answer is told to you with a hint. "
) * 3
_TEXT = (
    "first then carry the sum over subtract next term so far we have total check again result "
    "is therefore not correct because digit column adds tens ones hint larger smaller retry"
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "answer",
        "description": "Submit the final answer.",
        "parameters": {
            "type": "object",
            "properties": {"answer": {"type": "string"}},
            "required": ["answer"],
        },
    },
}


def write_run(folder: Path, episodes: int, *, seed: int = 0, model: str = "generated") -> RunFolder:
    """Write a run folder with that many episodes, `GROUP_SIZE` attempts at each task."""
    settings = {
        "environment": "chain_sum",
        "agent": {"provider": "stand-in", "model": model, "temperature": 0.8},
        "episodes": episodes,
        "seed": seed,
    }
    run = RunFolder.create(folder, settings)
    with run.episodes_path.open("wb", buffering=1 << 20) as file:
        file.writelines(generate_lines(episodes, seed=seed, model=model))
    return run


def generate_lines(episodes: int, *, seed: int = 0, model: str = "generated") -> Iterator[bytes]:
    """Yield the lines of generated episodes; ids, tasks, rewards and times differ in each."""
    draw = random.Random(seed)
    templates = [_template_line(draw, model) for _ in range(_NUM_TEMPLATES)]
    for number in range(episodes):
        reward = round(draw.random() ** 2, 3)
        group = number // GROUP_SIZE
        line = draw.choice(templates)
        line = line.replace(b"0badcafe-000000", b"0badcafe-%06d" % number, 1)
        line = line.replace(b'"reward":0.125', b'"reward":%r' % reward, 1)
        line = line.replace(b'"seed":7', b'"seed":%d' % group)
        line = line.replace(b"###", b"%d + %d" % (group % 900 + 100, group % 77 + 20), 1)
        line = line.replace(b"@", b"%d" % number)  # No two episodes have the same texts.
        yield line.replace(b'"group_id":"0000"', b'"group_id":"%016x"' % group, 1)


def _template_line(draw: random.Random, model: str) -> bytes:
    turns = draw.randint(1, 4)
    started = _START + timedelta(seconds=draw.randint(0, 10_000))
    reason = draw.choices(
        [StopReason.DONE, StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.BROKEN],
        [80, 10, 8, 2],
    )[0]
    is_broken = reason is StopReason.BROKEN
    mask = tuple(draw.choice(_MASK_VALUES) for _ in range(40))
    return Episode(
        episode_id="0badcafe-000000",
        stop_reason=reason,
        reward=None if is_broken else 0.125,
        usage=Usage(prompt_tokens=draw.randint(200, 900), completion_tokens=draw.randint(20, 400)),
        environment="chain_sum",
        task={"seed": 7, "terms": draw.randint(2, 6)},
        seed=7,
        group_id="0000",
        agent={"provider": "stand-in", "model": model, "temperature": 0.8},
        messages=tuple(_template_messages(draw, turns)),
        tools=(_TOOL,),
        rewards={} if is_broken else {"correct": 0.125},
        turn_rewards=() if is_broken else (*([0.0] * (turns - 1)), 0.125),
        done=reason is StopReason.DONE,
        turns=turns,
        tool_calls=turns,
        error=EpisodeFault(kind="TimeoutError", where="model", message="No reply within 60 s.")
        if is_broken
        else None,
        timing=Timing(
            started_at=started,
            ended_at=started + timedelta(seconds=draw.uniform(1, 30)),
            model_s=draw.uniform(1, 20),
            environment_s=draw.uniform(0, 1),
        ),
        tokens=Tokens(
            ids=tuple(draw.randint(20, 900) for _ in mask),
            logprobs=tuple(-draw.random() if each else None for each in mask),
            mask=mask,
        ),
    ).to_line()


def _template_messages(draw: random.Random, turns: int) -> Iterator[Message]:
    yield Message(role="system", content=_RULES)
    yield Message(role="user", content="What is ###?")
    for turn in range(turns):
        arguments = f'{{"answer": "{draw.randint(100, 3000)}"}}'
        call = Call(id=f"call_{turn}", function=Function(name="answer", arguments=arguments))
        yield Message(role="assistant", content=_sentence(draw, 60), tool_calls=(call,))
        hint = _sentence(draw, 12)
        yield Message(role="tool", content=hint, tool_call_id=call.id, name="answer")


def _sentence(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(_TEXT.split(), k=words)).capitalize() + " after @."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    write_run(options.folder, options.episodes, seed=options.seed)


if __name__ == "__main__":
    main()
