"""Many texts cut into tokens at once.

Rows of one environment have most of their text in common: system prompt, tools, questions. So a
text is cut where a special token begins a turn, and each stretch is made into tokens once. That is
exact, because a tokenizer works on what stands between special tokens piece by piece.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NOWHERE = r"(?!)"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text as tokens, and where in it each of them begins and ends."""

    ids: list[int]
    starts: list[int]
    ends: list[int]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[Encoded]:
    """Without special tokens of the tokenizer's own: a chat template writes them itself."""
    pieces = _cut(tokenizer, texts)
    different = list(dict.fromkeys(piece for each in pieces for piece in each))
    known = dict(zip(different, _encoded(tokenizer, different), strict=True))
    return [_joined([(piece, known[piece]) for piece in each]) for each in pieces]


def _cut(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[str]]:
    """Each text in pieces, of which all but the first begin with a special token.

    Not before a token that takes something from what stands before it. All are looked for, the
    longest first, because that is how the tokenizer finds them.
    """
    added = tokenizer.added_tokens_decoder.values()
    raw = sorted((token.content for token in added if not token.normalized), key=len, reverse=True)
    takers = {token.content for token in added if token.lstrip or token.single_word}
    pattern = re.compile("|".join(map(re.escape, raw)) or _NOWHERE)
    return [
        [text[begin:end] for begin, end in pairwise(_edges(text, pattern, takers)) if begin < end]
        for text in texts
    ]


def _edges(text: str, pattern: re.Pattern[str], takers: Collection[str]) -> list[int]:
    found = [match.start() for match in pattern.finditer(text) if match[0] not in takers]
    return [0, *found, len(text)]


def _encoded(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[Encoded]:
    if not texts:
        return []
    made = tokenizer(
        texts, add_special_tokens=False, return_offsets_mapping=True,
        return_attention_mask=False, return_token_type_ids=False,
    )  # fmt: skip
    return [
        Encoded(ids, [start for start, _ in offsets], [end for _, end in offsets])
        for ids, offsets in zip(made["input_ids"], made["offset_mapping"], strict=True)
    ]


def _joined(pieces: Sequence[tuple[str, Encoded]]) -> Encoded:
    ids: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for text, piece in pieces:
        ids += piece.ids
        starts += [at + start for start in piece.starts]
        ends += [at + end for end in piece.ends]
        at += len(text)
    return Encoded(ids, starts, ends)
