"""Tokenize rendered texts: repeated pieces once, and control tokens of messages as text.

Rows of one environment share most of their text: system prompt, tools, questions. Texts are split
where a special token begins a turn, and each piece is tokenized once. The result is exact, because
a tokenizer processes the text between two special tokens independently.

A tokenizer turns `<|im_end|>` into the token that ends a turn wherever it reads it, also in the
result of a tool. In a rendered text both look the same. So they are marked in the messages before
these are rendered: `MARK` replaces the first character, which keeps all offsets. The text is then
encoded by a copy of the tokenizer whose control tokens have the mark in their names, after the
marks were swapped: the template's control tokens get one, text in messages loses its own.
Conversations without such text, nearly all, are rendered and encoded as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic_core import to_json

from ludus.data.tool_schema import JsonObject
from ludus.policy.vision.processor import IMAGE_PLACEHOLDER

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[JsonObject]
Tools = Sequence[JsonObject] | None

CACHE_SIZE = 2048
"""Pieces; the cache is cleared when it is full, and refills with the frequent ones at once."""
MAX_CACHED_CHARS = 8192
"""Longer pieces hardly ever repeat and are not cached."""
MARK = "\x7f"
"""A control character that JSON does not escape. If a message has it, it is replaced."""
_REPLACED_MARK = "\N{REPLACEMENT CHARACTER}"
_AUTHORED_ROLES = ("system", "developer", "assistant")
"""Their content may have control tokens, such as the tokens around calls, but not around turns."""


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
    encodings = cached.encode(tokenizer, {piece for each in pieces for piece in each})
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
        unnormalized = [token.content for token in added if not token.normalized]
        self._pattern = _match_any(unnormalized) if unnormalized else re.compile(r"(?!)")
        self._context_sensitive = {
            token.content for token in added if token.lstrip or token.single_word
        }
        self._cache: dict[str, Encoding] = {}

    def split(self, text: str) -> list[str]:
        """Split the text before special tokens, except those that depend on earlier text."""
        starts = [
            match.start()
            for match in self._pattern.finditer(text)
            if match[0] not in self._context_sensitive
        ]
        return [text[start:end] for start, end in pairwise([0, *starts, len(text)]) if start < end]

    def encode(
        self, tokenizer: PreTrainedTokenizerBase, pieces: Iterable[str]
    ) -> dict[str, Encoding]:
        cache = self._cache
        encoded = {piece: cache[piece] for piece in pieces if piece in cache}
        new = [piece for piece in pieces if piece not in encoded]
        if not new:
            return encoded
        if len(cache) > CACHE_SIZE:
            cache.clear()
        backend: Tokenizer = tokenizer.backend_tokenizer
        # Call the backend directly: `tokenizer(...)` takes several times as long.
        if backend.padding is not None:
            backend.no_padding()
        if backend.truncation is not None:
            backend.no_truncation()
        for piece, each in zip(
            new, backend.encode_batch(new, add_special_tokens=False), strict=True
        ):
            starts, ends = [start for start, _ in each.offsets], [end for _, end in each.offsets]
            encoded[piece] = Encoding(each.ids, starts, ends)
            if len(piece) <= MAX_CACHED_CHARS:
                cache[piece] = encoded[piece]
        return encoded


_CACHED_TOKENIZERS: WeakKeyDictionary[PreTrainedTokenizerBase, _CachedTokenizer] = (
    WeakKeyDictionary()
)


class ContentGuard:
    """The control tokens of a tokenizer under a chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str) -> None:
        added = list(tokenizer.added_tokens_decoder.values())
        special = {str(token) for token in added if token.special}
        turn, reply_start = _render_turn(tokenizer, template)
        # Not every tokenizer flags the tokens of turns as special. Those in the start of a reply
        # that have no flag belong to its reasoning.
        turns = {str(token) for token in added if str(token) in turn}
        turns |= {token for token in special if token in reply_start}
        turns |= {str(token) for token in (tokenizer.bos_token, tokenizer.eos_token) if token}
        self.tokens = special | turns
        self._any_token = _match_any([IMAGE_PLACEHOLDER, *self.tokens])
        self._turn_token = _match_any([IMAGE_PLACEHOLDER, *turns])
        # A text without these has no control token, which is found out in a fraction of the time.
        starts = {token[:2] for token in self.tokens}
        by_start = ([token for token in self.tokens if token[:2] == start] for start in starts)
        self._prefixes = [to_json(commonprefix(tokens))[1:-1] for tokens in by_start]  # noqa: RUF071
        # Last, a mark whose token the template has changed, by escaping it.
        marked = _match_any([*self.tokens, *map(_marked_name, self.tokens)])
        self._marked_token = re.compile(f"{marked.pattern}|{MARK}")
        self._first_chars = {token[1:]: token[0] for token in self.tokens}
        self._backend: Tokenizer = tokenizer.backend_tokenizer

    def mark(
        self, messages: Messages, tools: Tools = None
    ) -> tuple[Messages, Tools, tuple[str, ...]]:
        """Mark control tokens in messages and tools; also returns the distinct tokens found."""
        try:
            # Faster than to walk through the schemas of tools.
            text = to_json((messages, tools))
            if not any(prefix in text for prefix in self._prefixes):
                return messages, tools, ()
        except ValueError:
            pass  # Such as half of a surrogate pair.
        found: dict[str, None] = {}
        marked = []
        for message in messages:
            is_authored = message.get("role") in _AUTHORED_ROLES
            fields = {}
            for name, value in message.items():
                turn_only = is_authored and name != "tool_calls"
                pattern = self._turn_token if turn_only else self._any_token
                fields[name] = _mark(value, pattern, found)
            marked.append(fields)
        marked_tools = [_mark(tool, self._any_token, found) for tool in tools or ()]
        return marked, tools and marked_tools, tuple(found)

    def unmark(self, text: str) -> str:
        """Remove the marks from a rendered text."""
        return self._marked_token.sub(lambda found: self._token_of(found[0]), text)

    def encode(self, text: str) -> Encoding:
        """Tokenize a rendered text in which the control tokens of messages are marked."""
        swapped = self._marked_token.sub(
            lambda found: (
                self._token_of(found[0]) if found[0][0] == MARK else _marked_name(found[0])
            ),
            text,
        )
        encoded, ids = self._marked_tokenizer.encode(swapped, add_special_tokens=False), self._ids
        starts, ends = [start for start, _ in encoded.offsets], [end for _, end in encoded.offsets]
        return Encoding([ids.get(each, each) for each in encoded.ids], starts, ends)

    def _token_of(self, name: str) -> str:
        """The token of a name with or without a mark."""
        return self._first_chars.get(name[1:], "<") + name[1:]

    @cached_property
    def _marked_tokenizer(self) -> Tokenizer:
        """A copy of the tokenizer whose control tokens have the mark in their names."""
        from tokenizers import Tokenizer

        fields = json.loads(self._backend.to_str())
        for token in fields["added_tokens"]:
            if token["content"] in self.tokens:
                token["content"] = _marked_name(token["content"])
        marked = Tokenizer.from_str(json.dumps(fields))
        marked.no_padding()
        marked.no_truncation()
        return marked

    @cached_property
    def _ids(self) -> dict[int | None, int]:
        """The ids of added tokens, by their ids in the copy."""
        return {
            self._marked_tokenizer.token_to_id(
                _marked_name(str(token)) if str(token) in self.tokens else str(token)
            ): token_id
            for token_id, token in self._backend.get_added_tokens_decoder().items()
        }


def content_guard(tokenizer: PreTrainedTokenizerBase, template: str) -> ContentGuard:
    """The guard for a tokenizer and its template, created once."""
    guards = _GUARDS.setdefault(tokenizer, {})
    key = template, len(tokenizer)  # Tokens may be added.
    if key not in guards:
        guards[key] = ContentGuard(tokenizer, template)
    return guards[key]


_GUARDS: WeakKeyDictionary[PreTrainedTokenizerBase, dict[tuple[str, int], ContentGuard]] = (
    WeakKeyDictionary()
)


def _match_any(tokens: Iterable[str]) -> re.Pattern[str]:
    """Match the longest of the tokens, as tokenizers do."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))


def _marked_name(token: str) -> str:
    return MARK + token[1:]


def _render_turn(tokenizer: PreTrainedTokenizerBase, template: str) -> tuple[str, str]:
    """A user's turn as the template writes it, and the start of a reply to it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        turn, whole = (
            render_jinja_template(
                [[{"role": "user", "content": "a"}]],
                chat_template=template,
                add_generation_prompt=start,
                **tokenizer.special_tokens_map,
            )[0][0]
            for start in (False, True)
        )
    except Exception:  # A template is foreign code that may raise anything.
        return "", ""
    return turn, whole.removeprefix(turn)


def _mark(value: Any, pattern: re.Pattern[str], found: dict[str, None]) -> Any:
    """Mark what the pattern matches in all strings of a JSON value, and add it to `found`."""
    if isinstance(value, str):

        def mark(match: re.Match[str]) -> str:
            if match[0] == IMAGE_PLACEHOLDER:
                return match[0]
            found[match[0]] = None
            return _marked_name(match[0])

        return pattern.sub(mark, value.replace(MARK, _REPLACED_MARK))
    if isinstance(value, dict):
        return {
            _mark(key, pattern, found): _mark(each, pattern, found) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mark(each, pattern, found) for each in value]
    return value
