"""Compile JSON schemas on trial: `python -m ludus.policy.engine.schema_trial` reads a list of them.

Schemas come from clients. Some take minutes or gigabytes to compile, and some overflow the stack,
which ends the process. So each is compiled here first, in a process that may end that way.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

CPU_LIMIT_S = 3
MEMORY_LIMIT_BYTES = 1 << 30
STACK_BYTES = 4 << 20
"""Half of what the server's own threads have."""


def build_matcher(tokenizer: Any, grammar: str) -> Any:
    """Compile a grammar. The matcher reports an error through its `get_error`."""
    from llguidance import LLMatcher, LLParserLimits

    # Fuel bounds the time of one mask: some ten milliseconds.
    limits = LLParserLimits(
        max_grammar_size=100_000,
        max_lexer_states=20_000,
        step_lexer_fuel=50_000,
        step_max_items=20_000,
    )
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def json_rule(name: str, schema: str) -> str:
    """The rule of a grammar for JSON of this schema, on one line as `json.dumps` writes it."""
    # Weak models would write white space without an end, where it is allowed anywhere.
    style = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
    return f"{name}: %json {json.dumps({**json.loads(schema), 'x-guidance': style})}"


def first_line(error: str) -> str:
    """What is wrong with a schema, without the place in a grammar that its client has not seen."""
    return error.partition("\n")[0].rpartition("failed to compile JSON schema: ")[2].strip()


def _try_all(schemas: Sequence[str]) -> None:
    """Print the index of each schema before it is tried, and at the end what is wrong, or ok."""
    from llguidance import LLTokenizer

    tokenizer: Any = LLTokenizer("byte")
    for index, schema in enumerate(schemas):
        print(index, flush=True)
        matcher = build_matcher(tokenizer, f"%llguidance {{}}\n{json_rule('start', schema)}")
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            print(first_line(matcher.get_error()))
            return
    print("ok")


def main() -> None:
    schemas = json.load(sys.stdin)
    if sys.platform != "win32":
        import resource

        os.nice(5)  # The model's threads come first.
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    trial = threading.Thread(target=_try_all, args=(schemas,))
    trial.start()
    trial.join()


if __name__ == "__main__":
    main()
