"""Tokenize many texts at once, and repeated pieces of them only once.

Rows of one environment share most of their text: system prompt, tools, questions. Texts are split
where a special token begins a turn, and each piece is tokenized once. The result is exact, because
a tokenizer processes the text between two special tokens independently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MATCHES_NOTHING = r"(?!)"
CACHE_SIZE = 2048
"""Pieces; the cache is cleared when it is full, and refills with the frequent ones at once."""
MAX_CACHED_CHARS = 8192
"""Longer pieces hardly ever repeat and are not cached."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Token ids, and the offsets in the text where each token begins and ends."""

    ids: list[int]
    starts: list[int]
    ends: list[int]


def encode_with_cache(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[Encoding]:
    """Tokenize texts, each repeated piece of them once, with the tokenizer's cache.

    No special tokens are added: chat templates write them themselves.
    """
    cached = _CACHED_TOKENIZERS.get(tokenizer)
    if cached is None or cached.vocab_size != len(tokenizer):  # Tokens have been added.
        cached = _CACHED_TOKENIZERS[tokenizer] = _CachedTokenizer(tokenizer)
    pieces = [cached.split(text) for text in texts]
    encodings = cached.encode(dict.fromkeys(piece for each in pieces for piece in each))
    joined = []
    for text_pieces in pieces:
        whole, offset = Encoding([], [], []), 0
        for piece in text_pieces:
            encoding = encodings[piece]
            whole.ids.extend(encoding.ids)
            whole.starts.extend(offset + start for start in encoding.starts)
            whole.ends.extend(offset + end for end in encoding.ends)
            offset += len(piece)
        joined.append(whole)
    return joined


class _CachedTokenizer:
    """Splits texts at the tokenizer's special tokens, and caches the encodings of the pieces.

    In every turn an episode is rendered with the same system prompt and the same tools.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.vocab_size = len(tokenizer)
        added = list(tokenizer.added_tokens_decoder.values())
        unnormalized = (token.content for token in added if not token.normalized)
        # Longest match first, as the tokenizer itself matches them.
        ordered = sorted(unnormalized, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or _MATCHES_NOTHING)
        self._context_sensitive = {
            token.content for token in added if token.lstrip or token.single_word
        }
        self._tokenizer = ref(tokenizer)
        self._cache: dict[str, Encoding] = {}

    def split(self, text: str) -> list[str]:
        """Split before special tokens, except those that depend on the text before them."""
        starts = [
            match.start()
            for match in self._pattern.finditer(text)
            if match[0] not in self._context_sensitive
        ]
        return [text[start:end] for start, end in pairwise([0, *starts, len(text)]) if start < end]

    def encode(self, pieces: Iterable[str]) -> dict[str, Encoding]:
        pieces, cache = list(pieces), self._cache
        cached = {piece: cache[piece] for piece in pieces if piece in cache}
        new = [piece for piece in pieces if piece not in cached]
        encoded: dict[str, Encoding] = {}
        if new:
            tokenizer: Any = self._tokenizer()
            output = tokenizer(
                new, add_special_tokens=False, return_offsets_mapping=True,
                return_attention_mask=False, return_token_type_ids=False,
            )  # fmt: skip
            columns = zip(new, output["input_ids"], output["offset_mapping"], strict=True)
            for piece, ids, offsets in columns:
                starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
                encoded[piece] = Encoding(ids, starts, ends)
        if len(cache) > CACHE_SIZE:
            cache.clear()
        cache.update(
            {
                piece: encoding
                for piece, encoding in encoded.items()
                if len(piece) <= MAX_CACHED_CHARS
            }
        )
        return cached | encoded


_CACHED_TOKENIZERS: WeakKeyDictionary[PreTrainedTokenizerBase, _CachedTokenizer] = (
    WeakKeyDictionary()
)
