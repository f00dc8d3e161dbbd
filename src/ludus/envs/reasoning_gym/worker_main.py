"""The program of a worker process: it generates questions and scores answers with the library.

It reads one JSON request per line from stdin and writes one JSON reply per line to stdout.
`worker_pool.py` says why the library has its own processes.
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
from functools import lru_cache
from typing import Any, BinaryIO

from ludus.envs.reasoning_gym.answers import AnswerRefused, check_answer
from ludus.envs.reasoning_gym.dataset_builder import (
    ConfigRefused,
    build_dataset,
    build_entry,
    config_fields,
)
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


def handle_names() -> list[str]:
    """Handle a request to the worker for the names of all data sets."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def handle_fields(name: str) -> list[str]:
    """Handle a request for the names of the fields of a data set's config."""
    return sorted(config_fields(name))


def handle_question(
    name: str, config: dict[str, Any], seed: int, size: int, index: int
) -> dict[str, Any]:
    """A question as plain JSON, with the library's pickled record of it for `handle_score`."""
    return _question(name, json.dumps(config), seed, size, index)


@lru_cache(maxsize=64)
def _question(name: str, config: str, seed: int, size: int, index: int) -> dict[str, Any]:
    """A question. The attempts of a group ask for the same one, and some take seconds to make."""
    entry = build_entry(name, json.loads(config), seed=seed, size=size, index=index)
    answer = entry["answer"]
    return {
        "question": str(entry["question"]),
        "answer": None if answer is None else str(answer),
        "metadata": encode_reply_value(entry["metadata"]),
        "entry": base64.b64encode(pickle.dumps(entry)).decode(),
    }


def handle_score(
    name: str,
    config: dict[str, Any],
    seed: int,
    size: int,
    entry: str,
    answer: str,
    answer_limit: float,
) -> dict[str, Any]:
    """The score of an answer, with a note where its evaluation was refused or aborted."""
    record = pickle.loads(base64.b64decode(entry))
    dataset = build_dataset(name, config, seed=seed, size=size)
    # The limits of an answer are lower than those of building the data set.
    limit_time(answer_limit)
    limit_memory(ANSWER_MEMORY_BYTES)
    try:
        source = record["metadata"].get("source_dataset", name)
        checked = check_answer(answer, source, right=record["answer"])
        value = float(dataset.score_answer(checked, record))
    except AnswerRefused as reason:
        return {"score": 0.0, "note": f"The answer was not evaluated: {reason}."}
    except MemoryError:
        return {"score": 0.0, "note": f"The answer {OVERSIZED_NOTE}."}
    except Exception:
        return {"score": 0.0, "note": None}
    return {"score": value if math.isfinite(value) else 0.0, "note": None}


def encode_reply_value(value: Any) -> Any:
    """Convert a value to JSON types, for the reply of a worker."""
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): encode_reply_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode_reply_value(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((encode_reply_value(item) for item in value), key=repr)
    if hasattr(value, "tolist"):
        return encode_reply_value(value.tolist())
    return str(value)


_METHODS: Mapping[str, Callable[..., Any]] = {
    "names": handle_names,
    "fields": handle_fields,
    "question": handle_question,
    "score": handle_score,
}


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Reply to requests until the parent closes the pipe or exits."""
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


def run_worker() -> None:
    """Run the worker process, until its parent closes the pipe or exits."""
    # Ctrl-C is handled by the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forbid_core_dumps()
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # The library may print: its output must not get into the replies.
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    apply_patches()
    # The parent may exit before it has read a reply.
    with suppress(BrokenPipeError):
        serve(requests, replies)


if __name__ == "__main__":
    run_worker()
