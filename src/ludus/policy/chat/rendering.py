"""What a row becomes under a chat template: tokens, and which of them bear the loss.

Loss is on the assistant's tokens alone, where the template marks them (`{% generation %}`). Ids
and marks are those that TRL's SFTTrainer makes with `assistant_only_loss`, only many times faster:
text is rendered row by row, and cut into tokens in one go. Which template a model is spoken to
under is `ludus.policy.chat.chat_format`'s business.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ludus.errors import TemplateRefused
from ludus.policy.chat.cached_tokenizer import Encoding, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

_GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is to be rendered."""

    messages: Messages
    tools: Tools = None
    num_prompt_messages: int = 0
    """So many messages were given apart as the prompt: they bear no loss."""
    add_generation_prompt: bool = False
    """Whether it ends with the words after which the model is to speak."""


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """One conversation as a model is trained on it."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    """1 where the token bears the loss."""
    text: str
    starts: tuple[int, ...]
    """Where in the text each token begins."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The stretches [start, end) of tokens that bear the loss."""
        runs = (list(run) for bears, run in groupby(range(len(self.ids)), self.mask.__getitem__)
                if bears)  # fmt: skip
        return [(run[0], run[-1] + 1) for run in runs]

    def truncate(self, max_length: int | None) -> RenderedConversation:
        """Its first `max_length` tokens, which is what is trained on."""
        if max_length is None or len(self.ids) <= max_length:
            return self
        text = self.text[: self.starts[max_length]]
        kept = slice(max_length)
        return RenderedConversation(self.ids[kept], self.mask[kept], text, self.starts[kept])

    def text_spans(self, special: frozenset[int] = frozenset()) -> Iterator[TextSpan]:
        """The whole text in order, cut where the loss or the writing of `special` tokens begins."""
        kinds = [(bool(m), i in special) for i, m in zip(self.ids, self.mask, strict=True)]
        groups = [(kind, next(run)) for kind, run in groupby(range(len(kinds)), kinds.__getitem__)]
        begins = [self.starts[first] for _, first in groups]
        for (kind, _), begin, end in zip(
            groups, [0, *begins[1:]], [*begins[1:], len(self.text)], strict=True
        ):
            yield TextSpan(self.text[begin:end], *kind)


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A stretch of the text whose tokens are all of one kind."""

    text: str
    has_loss: bool
    special: bool
    """Written by the template, as one token of its own: where a turn begins or ends."""


@dataclass(frozen=True, slots=True)
class RenderedPair:
    """Both sides of a preference pair.

    The loss is on what the assistant wrote after the common prompt, and on neither side on what
    an environment wrote.
    """

    chosen: RenderedConversation
    rejected: RenderedConversation


def has_generation_tag(template: str | Mapping[str, str]) -> bool:
    """Whether a template says which tokens are the assistant's."""
    return (
        _GENERATION_TAG.search(template if isinstance(template, str) else template["default"])
        is not None
    )


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    tools: Tools,
    template: str | None,
    *,
    num_prompt_messages: int = 0,
    add_generation_prompt: bool = False,
) -> RenderedConversation:
    """One conversation; see `render_many`."""
    (made,) = render_many(
        tokenizer,
        [Conversation(messages, tools, num_prompt_messages, add_generation_prompt)],
        template,
    )
    if isinstance(made, TemplateRefused):
        raise made
    return made


def render_many(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Conversation],
    template: str | None,
) -> list[RenderedConversation | TemplateRefused]:
    """Conversations as TRL's SFTTrainer tokenizes them; in the place of some, why they cannot be.

    Without a template it is the tokenizer's own. Under one without marks no token bears the loss.
    """
    drafts = [_render_conversation(tokenizer, each, template) for each in conversations]
    kept = [draft for draft in drafts if isinstance(draft, _RenderedText)]
    made = iter(encode(tokenizer, [draft.text for draft in kept]))
    openings = iter(encode(tokenizer, [draft.prompt_text for draft in kept if draft.prompt_text]))
    return [
        draft.with_tokens(next(made), next(openings).ids if draft.prompt_text else ())
        if isinstance(draft, _RenderedText)
        else draft
        for draft in drafts
    ]


def render_pair(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Messages,
    chosen: Messages,
    rejected: Messages,
    tools: Tools,
    template: str | None,
) -> RenderedPair:
    """Both sides as Ludus trains on them: what follows where a side departs from the prompt, and
    of that only the assistant's tokens."""
    better, worse = (
        render(tokenizer, [*prompt, *side], tools, template, num_prompt_messages=len(prompt))
        for side in (chosen, rejected)
    )
    return RenderedPair(better, worse)


def render_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    tools: Tools,
    template: str | None,
    *,
    add_generation_prompt: bool = False,
) -> str:
    """A conversation as text, before it is cut into tokens."""
    return _apply_template(
        tokenizer, messages, tools, template, add_generation_prompt=add_generation_prompt
    )[0]


def common_prefix_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class _RenderedText:
    """A conversation as text."""

    text: str
    assistant_spans: Sequence[tuple[int, int]]
    """The stretches of the text that the template marks as the assistant's."""
    prompt_text: str
    """The prompt that was given apart, as the model is asked with it."""

    def with_tokens(self, made: Encoding, opening: Sequence[int]) -> RenderedConversation:
        mask = [0] * len(made.ids)
        for begin, end in self.assistant_spans:
            # As transformers does it: the first token with that letter, and none if there is none.
            first, last = bisect_right(made.ends, begin), bisect_right(made.ends, end - 1)
            if first == len(mask):
                break
            mask[first : last + 1] = [1] * (min(last + 1, len(mask)) - first)
        asked = common_prefix_length(opening, made.ids)
        mask[:asked] = [0] * asked
        return RenderedConversation(tuple(made.ids), tuple(mask), self.text, tuple(made.starts))


def _render_conversation(
    tokenizer: PreTrainedTokenizerBase, talk: Conversation, template: str | None
) -> _RenderedText | TemplateRefused:
    asked = talk.messages[: talk.num_prompt_messages]
    try:
        text, marked = _apply_template(
            tokenizer,
            talk.messages,
            talk.tools,
            template,
            add_generation_prompt=talk.add_generation_prompt,
        )
        opening = (
            _apply_template(tokenizer, asked, talk.tools, template, add_generation_prompt=True)[0]
            if asked
            else ""
        )
    except TemplateRefused as error:
        return error
    return _RenderedText(text, marked, opening)


def _apply_template(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    tools: Tools,
    template: str | None,
    *,
    add_generation_prompt: bool = False,
) -> tuple[str, Sequence[tuple[int, int]]]:
    """The template's work: a text, and what of it is marked.

    It is a program of somebody else's, so it may raise anything.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    offered: Any = list(tools) if tools is not None else None
    known: Any = tokenizer.special_tokens_map
    try:
        if not messages:
            raise ValueError("there is no message in it")
        program = tokenizer.get_chat_template(template, offered)
        texts, marked = render_jinja_template(
            [list(messages)], tools=offered, chat_template=program,
            return_assistant_tokens_mask=has_generation_tag(program),
            add_generation_prompt=add_generation_prompt, **known,
        )  # fmt: skip
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise TemplateRefused(f"the template refuses it: {said}") from error
    return texts[0], marked[0] if marked else ()
