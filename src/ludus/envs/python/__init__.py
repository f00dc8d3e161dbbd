"""Python: write a function against hidden tests; the code runs in a sandbox."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Sequence

from pydantic import Field

from ludus.client.env_client import EnvClient
from ludus.data.tool_schema import JsonObject, ToolCall
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import tool
from ludus.envs.python.sandbox import MODE_VARIABLE, Limits, SandboxMode, open_sandbox
from ludus.envs.python.tasks import POOLS, TASKS, Case, Pool
from ludus.errors import ConfigError, ToolError, did_you_mean
from ludus.protocol.types import Action, State, TextObservation


class PythonAction(Action):
    """Submit the final code, which is tested. This ends the episode."""

    code: str = Field(description="Python code that defines the function, and what it needs.")


class PythonObservation(TextObservation):
    """The task, the output of a program, or the result of the tests, in `text`."""


class PythonEnv(EnvClient[PythonAction, PythonObservation, State]):
    """A typed client for a python server."""


LIMITS = Limits()
MAX_CODE_CHARACTERS = 50_000
MAX_SHOWN_CHARACTERS = 4_000
"""Maximum length of the output of a program that is shown; the middle of the rest is left out."""
MAX_SHOWN_VALUE = 300

_PROMPT = """\
Write this Python function:

{statement}

Examples:
{examples}

run(code) runs a program and shows what it prints. Nothing is kept for the next program.
submit(code) tests the function on {tests} hidden inputs and ends the episode.
Each call of either tool takes a turn. If the last turn is not a submission, the score is 0.
The score is 1.0 if all tests pass, and less than {partial:g} otherwise.
Code may use the standard library, {cpu} s of CPU time and {memory} MiB of memory. It cannot write \
files, use the network, or start processes or threads.
Turns left: {turns}"""


class Python(ToolEnvironment):
    """Write a function that passes hidden tests; code runs in a sandbox.

    The tasks are variants: `python:roman_numeral`. The bare name draws one of them.

    Tools:
        run(code): runs a program, and returns what it prints and how it ended.
        submit(code): tests the function that the code defines. A bare action `{"code": …}` goes
            here.
        A Markdown fence around the code is ignored.
    Observation:
        The signature, what the function does, and examples; then the output of a program and how
        many turns are left; at the end how many tests passed, and the first that did not.
    Reward:
        1.0 if all hidden tests pass. Otherwise half of the fraction that passed, not counting as
        many tests as a function that always returns the same value could pass. A program that
        breaks a limit or crashes has failed the tests that it did not get to.
        Its parts: `solved`, and `passed`, the fraction of tests that passed.
    Episode end:
        With a submission, or when no turns are left, with reward 0.0.
    Task arguments:
        seed: draws the task, its examples and its hidden tests.
        task: the name of the task (the variant).
        pool: draw from `all` tasks, or from those for `train` or for `test`, which differ (all).
        max_turns: how many calls there are (6).
    """

    blocking = True

    def __init__(self, variant: str | None = None, *, sandbox: SandboxMode | None = None) -> None:
        # Not an argument of `reset`, which clients of a server may choose.
        mode = sandbox or os.environ.get(MODE_VARIABLE) or "bwrap"
        if mode not in ("bwrap", "none"):
            raise ConfigError(f"{MODE_VARIABLE} must be bwrap or none, got {mode!r}.")
        self._sandbox = open_sandbox(mode, LIMITS)
        self._variant = variant

    @classmethod
    def variants(cls) -> Sequence[str]:
        return tuple(TASKS)

    @classmethod
    def variant_task(cls, variant: str) -> JsonObject:
        return {"task": variant}

    def get_task(self, split: str, index: int) -> JsonObject:
        return {**super().get_task(split, index), "pool": split}

    def task_key(self) -> str:
        """Return the name of the task: seeds only change its examples."""
        return self.task_name

    def reset(
        self,
        *,
        seed: int | None = None,
        task: str | None = None,
        pool: Pool = "all",
        max_turns: int = 6,
    ) -> str:
        if max_turns < 1:
            raise ValueError(f"max_turns must be positive, got {max_turns}.")
        rng = random.Random(seed)
        name = task or self._variant or rng.choice(POOLS[pool])
        if name not in TASKS:
            hint = did_you_mean(name, TASKS, "See `ludus envs python`.")
            raise ValueError(f"No task is named {name!r}. {hint}")
        self.task_name, self.task = name, TASKS[name]
        self.examples, self.tests = self.task.draw_tests(rng)
        self.max_turns = self.turns_left = max_turns
        return _PROMPT.format(
            statement=self.task.statement,
            examples="\n".join(
                f"{_format_call(name, e)} returns {e.expected!r}" for e in self.examples
            ),
            tests=len(self.tests),
            partial=PARTIAL_CREDIT,
            cpu=LIMITS.cpu_s,
            memory=LIMITS.memory_mib,
            turns=max_turns,
        )

    @tool
    def run(self, code: str) -> str:
        """Run a program and show what it prints.

        Args:
            code: Python code; print what you want to see.
        """
        code = self._take_turn(code)
        outcome = self._sandbox.run(code)
        parts = ["The program printed nothing."]
        if outcome.output:
            parts = [_shorten(outcome.output.rstrip("\n"), MAX_SHOWN_CHARACTERS)]
        if outcome.exception == MemoryError.__name__:
            parts.append(f"The program may use {LIMITS.memory_mib} MiB of memory.")
        if outcome.end_reason:
            parts.append(outcome.end_reason)
        return self._reply("\n".join(parts))

    @tool(default=True)
    def submit(self, code: str) -> str:
        """Submit the final code, which is tested. This ends the episode.

        Args:
            code: Python code that defines the function, and what it needs.
        """
        code = self._take_turn(code)
        calls = [test.arguments for test in self.tests]
        outcome = self._sandbox.run(code, function=self.task.name, calls=calls)
        replies = [*outcome.replies, *[None] * (len(calls) - len(outcome.replies))]
        verdicts = [passes(test, reply) for test, reply in zip(self.tests, replies, strict=True)]
        passed = sum(verdicts)
        lines = [f"{passed} of {len(calls)} tests passed."]
        if outcome.exception:
            lines.append(_shorten(outcome.exception, MAX_SHOWN_VALUE))
        elif passed < len(calls):
            failed = verdicts.index(False)
            lines.append(_format_failure(self.task.name, self.tests[failed], replies[failed]))
        if outcome.end_reason:
            lines.append(outcome.end_reason)
        return self.finish(
            compute_reward(self.tests, passed),
            "\n".join(lines),
            solved=float(passed == len(calls)),
            passed=passed / len(calls),
        )

    def oracle(self) -> ToolCall:
        return ToolCall(name="submit", arguments={"code": self.task.solution_code})

    def random_action(self, rng: random.Random) -> ToolCall:
        """Print the input of an example; a random submission would end the episode."""
        program = f"print({', '.join(map(repr, rng.choice(self.examples).arguments))})"
        return ToolCall(name="run", arguments={"code": program})

    def _take_turn(self, code: str) -> str:
        """Count a turn; returns the code to run."""
        self.turns_left -= 1
        lines = code.strip().splitlines()
        if len(lines) > 1 and lines[0].startswith("```") and lines[-1] == "```":
            # The Markdown fence that models like to put around code.
            code = "\n".join(lines[1:-1])
        if not code.strip():
            raise ToolError(self._reply("The code is empty. Send the text of a program."))
        if len(code) > MAX_CODE_CHARACTERS:
            problem = f"The code has {len(code)} characters, and may have {MAX_CODE_CHARACTERS}."
            raise ToolError(self._reply(problem))
        return code

    def _reply(self, text: str) -> str:
        if self.turns_left > 0:
            return f"{text}\nTurns left: {self.turns_left}"
        text = f"{text}\nNo turns are left, and nothing was submitted."
        return self.finish(0.0, text, solved=0.0, passed=0.0)


def _format_call(name: str, test: Case) -> str:
    return f"{name}({', '.join(map(repr, test.arguments))})"


def _format_failure(name: str, test: Case, reply: object) -> str:
    """Say what a function did wrong; the reply may be any JSON value."""
    behavior = "did not return"
    if isinstance(reply, dict) and "value" in reply:
        try:
            behavior = f"returned {_shorten(repr(reply['value']), MAX_SHOWN_VALUE)}"
        except RecursionError:
            behavior = "returned a deeply nested value"
    elif isinstance(reply, dict) and isinstance(reply.get("error"), str):
        behavior = f"raised {_shorten(reply['error'], MAX_SHOWN_VALUE)}"
    return f"{_format_call(name, test)} should return {test.expected!r}, but {behavior}."


def _shorten(text: str, limit: int) -> str:
    """Leave out the middle of a long text, and escape what UTF-8 cannot encode."""
    if len(text) > limit:
        half = limit // 2
        left_out = f"\n… {len(text) - 2 * half} characters left out …\n"
        text = text[:half] + left_out + text[-half:]
    return text.encode("utf-8", "backslashreplace").decode()


PARTIAL_CREDIT = 0.5
"""Bound of the reward if some tests fail."""


def passes(test: Case, reply: object) -> bool:
    """Whether a reply of the sandbox, which may be any JSON value, is what the test expects."""
    return isinstance(reply, dict) and "value" in reply and equals(test.expected, reply["value"])


def equals(expected: object, actual: object) -> bool:
    """Whether a function returned the expected value; 1, 1.0 and True are different values."""
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(equals, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(
            equals(value, actual[key]) for key, value in expected.items()
        )
    if isinstance(expected, float) and isinstance(actual, float):
        return math.isclose(expected, actual, rel_tol=1e-9, abs_tol=1e-9)
    return bool(expected == actual)


def compute_reward(tests: Sequence[Case], passed: int) -> float:
    """1.0 if all tests pass; else partial credit for those that no constant answer would pass."""
    if passed == len(tests):
        return 1.0
    ((_, constant_passes),) = Counter(repr(test.expected) for test in tests).most_common(1)
    return PARTIAL_CREDIT * max(0, passed - constant_passes) / (len(tests) - constant_passes)
