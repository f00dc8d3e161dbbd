"""Many texts cut into tokens at once.

Rows of one environment have most of their text in common: system prompt, tools, questions. So a
text is cut where a special token begins a turn, and each stretch is made into tokens once. That is
exact, because a tokenizer works on what stands between special tokens piece by piece.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MATCHES_NOTHING = r"(?!)"
CACHE_SIZE = 2048
"""Pieces, after which all are forgotten: what is used often is back at once."""
MAX_CACHED_CHARS = 8192
"""Letters of a piece that is remembered."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """A text as tokens, and where in it each of them begins and ends."""

    ids: list[int]
    starts: list[int]
    ends: list[int]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[Encoding]:
    """Without special tokens of the tokenizer's own: a chat template writes them itself."""
    cutter = _cached_tokenizer(tokenizer)
    pieces = [cutter.split(text) for text in texts]
    known = cutter.encode(dict.fromkeys(piece for each in pieces for piece in each))
    return [_concatenate([(piece, known[piece]) for piece in each]) for each in pieces]


class _CachedTokenizer:
    """A tokenizer's way to cut, and the pieces that it was last asked for.

    Turn after turn an episode is rendered with the same system prompt and the same tools.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.vocab_size = len(tokenizer)
        added = list(tokenizer.added_tokens_decoder.values())
        raw = (token.content for token in added if not token.normalized)
        # The longest first, because that is how the tokenizer finds them.
        longest = sorted(raw, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)) or _MATCHES_NOTHING)
        self._context_sensitive = {
            token.content for token in added if token.lstrip or token.single_word
        }
        self._tokenizer = ref(tokenizer)
        self._cache: dict[str, Encoding] = {}

    def split(self, text: str) -> list[str]:
        """In pieces, of which all but the first begin with a special token.

        Not before a token that takes something from what stands before it.
        """
        edges = _piece_boundaries(text, self._pattern, self._context_sensitive)
        return [text[begin:end] for begin, end in pairwise(edges) if begin < end]

    def encode(self, pieces: Iterable[str]) -> dict[str, Encoding]:
        """Each piece as tokens; long ones, which are hardly met again, are not remembered."""
        pieces, known = list(pieces), self._cache
        found = {piece: known[piece] for piece in pieces if piece in known}
        fresh = [piece for piece in pieces if piece not in found]
        made = dict(zip(fresh, _encode_texts(self._tokenizer(), fresh), strict=True))
        if len(known) > CACHE_SIZE:
            known.clear()
        known.update(
            {piece: each for piece, each in made.items() if len(piece) <= MAX_CACHED_CHARS}
        )
        return found | made


_CACHED_TOKENIZERS: WeakKeyDictionary[PreTrainedTokenizerBase, _CachedTokenizer] = (
    WeakKeyDictionary()
)


def _cached_tokenizer(tokenizer: PreTrainedTokenizerBase) -> _CachedTokenizer:
    """Made anew when tokens were added."""
    found = _CACHED_TOKENIZERS.get(tokenizer)
    if found is None or found.vocab_size != len(tokenizer):
        found = _CACHED_TOKENIZERS[tokenizer] = _CachedTokenizer(tokenizer)
    return found


def _piece_boundaries(text: str, pattern: re.Pattern[str], takers: Collection[str]) -> list[int]:
    found = [match.start() for match in pattern.finditer(text) if match[0] not in takers]
    return [0, *found, len(text)]


def _encode_texts(tokenizer: Any, texts: list[str]) -> list[Encoding]:
    if not texts:
        return []
    made = tokenizer(
        texts, add_special_tokens=False, return_offsets_mapping=True,
        return_attention_mask=False, return_token_type_ids=False,
    )  # fmt: skip
    return [
        Encoding(ids, [start for start, _ in offsets], [end for _, end in offsets])
        for ids, offsets in zip(made["input_ids"], made["offset_mapping"], strict=True)
    ]


def _concatenate(pieces: Sequence[tuple[str, Encoding]]) -> Encoding:
    ids: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for text, piece in pieces:
        ids += piece.ids
        starts += [at + start for start in piece.starts]
        ends += [at + end for end in piece.ends]
        at += len(text)
    return Encoding(ids, starts, ends)
