"""The program of the child process: it makes questions and scores answers with the library.

It reads one JSON request a line on stdin and writes one JSON reply a line on stdout. The other end
of the pipe is `library.py`, which says why there is a pipe at all.
"""

from __future__ import annotations

import base64
import json
import math
import os
import pickle
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from ludus.envs.reasoning_gym.answers import AnswerRefused, check_answer
from ludus.envs.reasoning_gym.datasets import ConfigRefused, build_dataset, build_entry
from ludus.envs.reasoning_gym.limits import (
    ANSWER_MEMORY_BYTES,
    MIB,
    QUESTION_MEMORY_BYTES,
    forbid_core_dumps,
    limit_memory,
    limit_time,
)
from ludus.envs.reasoning_gym.patches import apply_patches

OVERSIZED_NOTE = f"needs more than {ANSWER_MEMORY_BYTES // MIB} MiB to evaluate"


def names() -> list[str]:
    """Every data set that the library has."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def question(name: str, config: dict[str, Any], seed: int, size: int, index: int) -> dict[str, Any]:
    """A question as plain JSON, and the library's own record of it, sealed, for `score`."""
    entry = build_entry(name, config, seed=seed, size=size, index=index)
    answer = entry["answer"]
    return {
        "question": str(entry["question"]),
        "answer": None if answer is None else str(answer),
        "metadata": to_plain_json(entry["metadata"]),
        "entry": base64.b64encode(pickle.dumps(entry)).decode(),
    }


def score(
    name: str,
    config: dict[str, Any],
    seed: int,
    size: int,
    entry: str,
    answer: str,
    answer_limit: float,
) -> dict[str, Any]:
    """What the answer is worth, and why it is worth nothing if it was not evaluated to its end."""
    asked = pickle.loads(base64.b64decode(entry))
    dataset = build_dataset(name, config, seed=seed, size=size)
    # From here on it is the answer that costs, and no longer the data set.
    limit_time(answer_limit)
    limit_memory(ANSWER_MEMORY_BYTES)
    try:
        given = check_answer(answer, asked["metadata"].get("source_dataset", name))
        worth = float(dataset.score_answer(given, asked))
    except AnswerRefused as reason:
        return {"score": 0.0, "note": f"The answer was not evaluated: {reason}."}
    except MemoryError:
        return {"score": 0.0, "note": f"The answer {OVERSIZED_NOTE}."}
    except Exception:
        return {"score": 0.0, "note": None}
    return {"score": worth if math.isfinite(worth) else 0.0, "note": None}


def to_plain_json(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((to_plain_json(item) for item in value), key=repr)
    if hasattr(value, "tolist"):
        return to_plain_json(value.tolist())
    return str(value)


_METHODS: Mapping[str, Callable[..., Any]] = {"names": names, "question": question, "score": score}


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Reply to requests until the parent closes the pipe, be it by ending."""
    for line in requests:
        request = json.loads(line)
        limit_time(request["limit"])
        limit_memory(QUESTION_MEMORY_BYTES)
        try:
            reply = {"value": _METHODS[request["do"]](**request["with"])}
        except ConfigRefused as refusal:
            reply = {"refused": str(refusal), "fields": refusal.fields}
        limit_time(0)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def main() -> None:
    # An interrupt from the keyboard is the parent's to deal with.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forbid_core_dumps()
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What the library prints goes nowhere, and what it reads is empty.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    apply_patches()
    # The parent may be gone before it has read what it asked for.
    with suppress(BrokenPipeError):
        serve(requests, replies)


if __name__ == "__main__":
    main()
