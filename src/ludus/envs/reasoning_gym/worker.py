"""The program of a worker process: it generates questions and scores answers with the library.

The library needs separate processes. Questions depend on PYTHONHASHSEED and on the global random
number generators; generators print; scorers pass the answer to `eval`, and a large one would block
a server for ever. In a worker the hash seed is 0, and a request that exceeds its limits ends only
the worker. The kernel enforces the limits, because Python may be busy with one huge power, during
which no signal handler and no other thread runs. They count from the start of each request.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import pickle
import random
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import to_jsonable_python

from ludus.environment.worker_processes import open_worker_pipes
from ludus.envs.reasoning_gym.scoring import (
    EXCLUDED,
    AnswerRefused,
    UnusableQuestion,
    check_answer,
    patch_library,
    require_usable,
)

if TYPE_CHECKING:
    from reasoning_gym.factory import ProceduralDataset

    from ludus.data.tool_schema import JsonObject

try:
    import resource
except ImportError:  # pragma: no cover - Windows has neither limits nor timers.
    resource = None  # type: ignore[assignment]  # A module has no optional type.

MIB = 1 << 20
QUESTION_MEMORY_BYTES = 2048 * MIB
ANSWER_MEMORY_BYTES = 256 * MIB
"""In addition to the memory of the process at the start of the request."""
WALL_TIME_FACTOR = 10
"""The wall-clock limit of a request, as a multiple of its CPU limit."""


_RESEEDABLE_NAMES = (
    "arc_agi base_conversion caesar_cipher emoji_mystery figlet_font group_anagrams "
    "letter_counting letter_jumble n_queens rush_hour sentence_reordering spell_backward "
    "word_ladder word_sequence_reversal word_sorting"
)
RESEEDABLE = frozenset(_RESEEDABLE_NAMES.split())
"""Data sets that take up to a second to build, load the same files for every seed, and use the seed
only when a question is generated: one object serves all seeds."""

ACRE_SIZE = 10
"""`acre` generates all questions when it is built; ten is the smallest size that it supports."""

MAX_REDRAWS = 100
REDRAW_SEED_STRIDE = 100_000_000
"""A question without a correct answer is drawn again at most `MAX_REDRAWS` times, each time with a
seed that is larger by `REDRAW_SEED_STRIDE`."""

BETTER_DEFAULTS: Mapping[str, JsonObject] = {
    # Otherwise seven in ten answers are "Yes".
    "syllogism": {"invalid_ratio": 0.5},
}
"""Better defaults for data sets of which one constant would answer most questions."""


def run_question_worker() -> None:
    """Reply to requests until the parent closes the pipe or exits."""
    if resource is not None:
        # A worker that is ended by its limits writes no core file.
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    requests, replies = open_worker_pipes()
    patch_library()
    # The parent may exit before it has read a reply.
    with suppress(BrokenPipeError):
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


def limit_time(seconds: float) -> None:
    """Let the kernel end this process after `seconds` of CPU time; 0 removes the limit.

    CPU time does not depend on the load of the machine. A process that waits without using the CPU
    is ended too, but much later and with another signal.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL_TIME_FACTOR * seconds)


def limit_memory(extra: int) -> None:
    """Let allocations beyond `extra` more bytes raise MemoryError. Linux only."""
    try:
        usage = Path("/proc/self/statm").read_text()
    except OSError:
        return
    # The sixth number is the pages of data memory, as RLIMIT_DATA counts them.
    soft = int(usage.split()[5]) * resource.getpagesize() + extra
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def handle_names() -> list[str]:
    """Handle a request to the worker for the names of the data sets that are offered."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS.keys() - EXCLUDED)


def handle_question(name: str, config: JsonObject, seed: int, size: int, index: int) -> JsonObject:
    """A question as plain JSON, with the library's pickled record of it for `handle_score`."""
    return _question(name, json.dumps(config), seed, size, index)


@lru_cache(maxsize=64)
def _question(name: str, config: str, seed: int, size: int, index: int) -> JsonObject:
    """A question. The attempts of a group ask for the same one, and some take seconds to make."""
    entry = build_entry(name, json.loads(config), seed=seed, size=size, index=index)
    answer = entry["answer"]
    return {
        "question": str(entry["question"]),
        "answer": None if answer is None else str(answer),
        "metadata": to_jsonable_python(
            entry["metadata"],
            inf_nan_mode="strings",
            # NumPy's arrays and numbers, and classes of the library.
            fallback=lambda value: value.tolist() if hasattr(value, "tolist") else str(value),
        ),
        "entry": base64.b64encode(pickle.dumps(entry)).decode(),
    }


def handle_score(
    name: str,
    config: JsonObject,
    seed: int,
    size: int,
    entry: str,
    answer: str,
    answer_limit: float,
) -> JsonObject:
    """Score an answer, with a note if its evaluation was refused or aborted."""
    record = pickle.loads(base64.b64decode(entry))
    dataset = build_dataset(name, config, seed=seed, size=size)
    # An answer has lower limits than the building of a data set.
    limit_time(answer_limit)
    limit_memory(ANSWER_MEMORY_BYTES)
    try:
        source = record["metadata"].get("source_dataset", name)
        checked = check_answer(answer, source, right=record["answer"])
        value = float(dataset.score_answer(checked, record))
    except AnswerRefused as reason:
        return {"score": 0.0, "note": f"The answer was not evaluated: {reason}."}
    except MemoryError:
        limit = ANSWER_MEMORY_BYTES // MIB
        return {"score": 0.0, "note": f"The answer needs more than {limit} MiB to evaluate."}
    except Exception:
        return {"score": 0.0, "note": None}
    return {"score": value if math.isfinite(value) else 0.0, "note": None}


class ConfigRefused(Exception):
    """The library rejects a config; `fields` are the names of the config's fields."""

    def __init__(self, error: Exception, fields: Iterable[str]) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.fields = sorted(fields)


def build_entry(name: str, config: JsonObject, *, seed: int, size: int, index: int) -> JsonObject:
    """Build the library's record of a question, with fixes; redraws until it is usable."""
    if name == "acre":
        seed, index = seed + index, 0
    for draw_seed in range(seed, seed + MAX_REDRAWS * REDRAW_SEED_STRIDE, REDRAW_SEED_STRIDE):
        dataset = build_dataset(name, config, seed=draw_seed, size=size)
        seed_global_rngs(draw_seed + index)
        try:
            entry: JsonObject = dataset[index]
            metadata = entry["metadata"]
            if name == "time_intervals" and metadata["task_type"].startswith("time"):
                # A time of day is recorded with today's date, which the seed does not determine.
                for key in ("start_time", "end_time"):
                    metadata[key] = metadata[key].split()[-1]
            require_usable(entry, dataset)
            return entry
        except UnusableQuestion:
            continue
        except Exception as error:
            raise ConfigRefused(error, config_fields(name)) from error
    raise ConfigRefused(ValueError("none of its questions can be used"), config_fields(name))


def build_dataset(name: str, config: JsonObject, *, seed: int, size: int) -> ProceduralDataset:
    """Build a data set, or take it from the cache; raises `ConfigRefused`."""
    shared = name in RESEEDABLE
    size = ACRE_SIZE if name == "acre" else size
    seed_global_rngs(seed)
    dataset = _create_dataset(name, json.dumps(config), None if shared else seed, size)
    if shared:
        dataset.seed = dataset.config.seed = seed
    return dataset


def config_fields(name: str) -> JsonObject:
    """The fields of a data set's config, with their defaults."""
    from reasoning_gym.factory import DATASETS

    _, config = DATASETS[name]
    return {
        field.name: field.default
        if field.default_factory is dataclasses.MISSING
        else field.default_factory()
        for field in dataclasses.fields(config)
        if field.name not in ("seed", "size")
    }


def seed_global_rngs(seed: int) -> None:
    """Seed the global random number generators, which some data sets use."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)


@lru_cache(maxsize=32)
def _create_dataset(name: str, config: str, seed: int | None, size: int) -> ProceduralDataset:
    from reasoning_gym.factory import create_dataset

    defaults = config_fields(name)
    arguments = {**BETTER_DEFAULTS.get(name, {}), **json.loads(config), "seed": seed, "size": size}
    for field, value in arguments.items():
        if isinstance(defaults.get(field), tuple) and isinstance(value, list):
            arguments[field] = tuple(value)  # JSON has no tuples.
    try:
        return create_dataset(name, **arguments)
    except Exception as error:
        raise ConfigRefused(error, config_fields(name)) from error


_METHODS: Mapping[str, Callable[..., object]] = {
    "names": handle_names,
    "fields": lambda name: sorted(config_fields(name)),
    "question": handle_question,
    "score": handle_score,
}


if __name__ == "__main__":
    run_question_worker()
