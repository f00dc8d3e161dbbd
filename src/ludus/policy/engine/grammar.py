"""Grammars that limit the tokens of a completion, and their masks. llguidance computes both."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Protocol

from ludus.errors import ConfigError, MissingExtra
from ludus.policy.engine import schema_trial

if TYPE_CHECKING:
    from torch import Tensor

MAX_SCHEMA_CHARS = 100_000
"""Of all schemas of a request together."""
TRIAL_TIMEOUT_S = 30.0
MAX_TRIALS = 2
"""Processes at once that try schemas."""
CACHE_SIZE = 32
MASKED_LOGIT = -1e30
"""Of tokens that are not allowed. Finite, because the kernels subtract the largest of a block."""


class SchemaRefused(Exception):
    """A schema is wrong, or asks for what is not supported; `index` is its place in the grammar."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


class GrammarSource(Hashable, Protocol):
    """What a grammar is compiled from."""

    @property
    def schemas(self) -> Sequence[str]:
        """Of the rules `json_0`, `json_1` and so on, as JSON."""

    def to_lark(self, special_ids: Mapping[str, int]) -> str:
        """The other rules, given the tokens that text cannot write, by their names."""


class Grammar:
    """A compiled grammar, which many completions may follow."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size

    def start(self, stop_ids: Collection[int]) -> Constraint:
        return Constraint(self._matcher.deep_copy(), self._vocab_size, stop_ids)


class Constraint:
    """Where one completion stands in its grammar, at whose end one of `stop_ids` ends it."""

    def __init__(self, matcher: Any, vocab_size: int, stop_ids: Collection[int]) -> None:
        self.matcher, self.vocab_size = matcher, vocab_size
        self.failure: str | None = None
        """Why the completion cannot go on: its next mask takes too much work."""
        self._stop_ids = sorted(stop_ids)

    def accept(self, token: int) -> None:
        """Advance by the token that was sampled."""
        if token not in self._stop_ids:
            self.matcher.consume_token(token)

    def set_stops(self, mask: Any) -> None:
        """Allow the stop tokens, in a row of bytes, where the grammar may end, and only there."""
        bits = [(stop >> 3, 1 << (stop & 7)) for stop in self._stop_ids]
        for byte, bit in bits:
            mask[byte] &= ~bit & 0xFF
        may_end = self.matcher.is_accepting()
        if self.matcher.is_error() or not (may_end or mask.any()):
            self.failure = schema_trial.first_line(self.matcher.get_error()) or "no token fits"
            mask[:] = 0
        if may_end or self.failure is not None:
            for byte, bit in bits:
                mask[byte] |= bit


class GrammarCompiler:
    """Compiles grammars for one tokenizer, off the event loop, and keeps the newest."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._compiled: dict[GrammarSource, Grammar] = {}
        self._trials = asyncio.Semaphore(MAX_TRIALS)

    async def compile(self, source: GrammarSource) -> Grammar:
        """Compile the grammar, or raise `SchemaRefused`."""
        from ludus.policy.runtime import run_off_loop

        num_chars, schemas = sum(map(len, source.schemas)), source.schemas
        if num_chars > MAX_SCHEMA_CHARS:
            largest = max(range(len(schemas)), key=lambda index: len(schemas[index]))
            reason = f"{num_chars:,} characters of schemas are more than {MAX_SCHEMA_CHARS:,}"
            raise SchemaRefused(largest, reason)
        if source not in self._compiled:
            async with self._trials:
                await _try_schemas(schemas)
            grammar = await run_off_loop(self._build, source)
            while len(self._compiled) >= CACHE_SIZE:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[source] = grammar
        return self._compiled[source]

    def _build(self, source: GrammarSource) -> Grammar:
        tokenizer, special_ids = self._vocabulary
        rules = [
            schema_trial.json_rule(f"json_{i}", schema) for i, schema in enumerate(source.schemas)
        ]
        lark = "\n".join(["%llguidance {}", source.to_lark(special_ids), *rules])
        matcher = schema_trial.build_matcher(tokenizer, lark)
        if matcher.is_error():
            raise SchemaRefused(0, schema_trial.first_line(matcher.get_error()))
        return Grammar(matcher, tokenizer.vocab_size)

    @cached_property
    def _vocabulary(self) -> tuple[Any, dict[str, int]]:
        """llguidance's tokenizer, which takes a second, and the special tokens by their names."""
        from llguidance.hf import from_tokenizer

        try:
            tokenizer = from_tokenizer(self._tokenizer)
        except ValueError as error:
            raise ConfigError(
                f"The model's tokenizer does not support constrained decoding: {error}."
            ) from error
        added = self._tokenizer.added_tokens_decoder
        special = {each.content: i for i, each in added.items() if tokenizer.is_special_token(i)}
        return tokenizer, special


async def _try_schemas(schemas: Sequence[str]) -> None:
    """Raise `SchemaRefused` for schemas that do not compile within the limits of a trial."""
    try:
        import llguidance  # noqa: F401
    except ImportError:
        raise MissingExtra.of("train", "Constrained decoding") from None
    trial = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", schema_trial.__name__),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    try:
        async with asyncio.timeout(TRIAL_TIMEOUT_S):
            output, _ = await trial.communicate(json.dumps(schemas).encode())
    except TimeoutError:
        output = b""
    finally:
        if trial.returncode is None:
            trial.kill()
            await trial.wait()
    *tried, last = output.decode().splitlines() or ["0"]
    if last.isdecimal():
        raise SchemaRefused(int(last), "it is too complex")
    if last != "ok":
        raise SchemaRefused(int(tried[-1]), last)


@cache
def _executor() -> Any:
    """Computes the masks of many rows, in threads."""
    from llguidance import LLExecutor

    return LLExecutor()


def mask_logits(logits: Tensor, constraints: Mapping[int, Constraint]) -> Tensor:
    """The logits [rows, vocabulary] in float32, where these rows have no other tokens than allowed.

    On a GPU the masks are computed while the forward pass still runs.
    """
    import numpy as np
    import torch
    from llguidance.numpy import fill_next_token_bitmask_par
    from torch.nn import functional

    rows, states = list(constraints), list(constraints.values())
    words = np.zeros((len(rows), (states[0].vocab_size + 31) // 32), dtype=np.int32)
    matchers = [(state.matcher, index) for index, state in enumerate(states)]
    fill_next_token_bitmask_par(_executor(), matchers, words)
    masks = words.view(np.uint8)
    for state, mask in zip(states, masks, strict=True):
        state.set_stops(mask)
    packed = torch.from_numpy(masks).to(logits.device).unsqueeze(-1)
    shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
    allowed = ((packed >> shifts) & 1).flatten(1).bool()
    # Models may have more logits than their tokenizers have tokens.
    allowed = functional.pad(allowed, (0, logits.shape[-1] - allowed.shape[-1]))
    logits, index = logits.float(), torch.tensor(rows, device=logits.device)
    return logits.index_copy(0, index, logits[index].masked_fill(~allowed, MASKED_LOGIT))
