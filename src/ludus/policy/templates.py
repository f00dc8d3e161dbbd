"""What a row becomes under a student's chat template: tokens, and which of them bear the loss.

TRL trains on the assistant's tokens alone where the template marks them (`{% generation %}`). A
template without marks is swapped for TRL's own where it is, letter for letter, one that TRL knows.
Both are done here as TRL does them, so that what is shown is what is trained. TRL itself is not
imported for it, which would load torch and take seconds: its templates are files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.errors import MissingExtra, TemplateRefused, TemplateUnmarked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
_TRAINING = "_training"


@dataclass(frozen=True, slots=True)
class Rendered:
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

    def cut(self, max_length: int | None) -> Rendered:
        """Its first `max_length` tokens, which is what is trained on."""
        if max_length is None or len(self.ids) <= max_length:
            return self
        text = self.text[: self.starts[max_length]]
        kept = slice(max_length)
        return Rendered(self.ids[kept], self.mask[kept], text, self.starts[kept])

    def pieces(self, special: frozenset[int] = frozenset()) -> Iterator[Piece]:
        """The whole text in order, cut where the loss or the writing of `special` tokens begins."""
        kinds = [(bool(m), i in special) for i, m in zip(self.ids, self.mask, strict=True)]
        groups = [(kind, next(run)) for kind, run in groupby(range(len(kinds)), kinds.__getitem__)]
        begins = [self.starts[first] for _, first in groups]
        for (kind, _), begin, end in zip(
            groups, [0, *begins[1:]], [*begins[1:], len(self.text)], strict=True
        ):
            yield Piece(self.text[begin:end], *kind)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the text whose tokens are all of one kind."""

    text: str
    bears_loss: bool
    special: bool
    """Written by the template, as one token of its own: where a turn begins or ends."""


@dataclass(frozen=True, slots=True)
class RenderedPair:
    """Both sides of a preference pair; the loss is on all that follows the common prompt."""

    chosen: Rendered
    rejected: Rendered


def marks_assistant(template: str | Mapping[str, str]) -> bool:
    """Whether a template says which tokens are the assistant's."""
    return _MARKER.search(_default(template)) is not None


def training_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The template under which assistants' turns are trained; None: the tokenizer's own.

    None is also what `apply_chat_template` takes for it: a tokenizer may have several of its own,
    and picks by whether there are tools.
    """
    own: Any = tokenizer.chat_template
    if marks_assistant(own):
        return None
    known = _swaps()
    if (swapped := known.get(_default(own))) is not None:
        return swapped
    raise TemplateUnmarked(
        "The chat template of this student does not mark the assistant's tokens "
        "({% generation %}), and is none that TRL has a marked one for. Add the marks to the "
        f"template, or take a student of one of these families: {', '.join(families())}."
    )


def families() -> list[str]:
    """The templates that TRL can swap for marked ones, by TRL's names for them."""
    return sorted(path.stem.removesuffix(_TRAINING) for path in _marked())


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    tools: Tools,
    template: str | None,
    *,
    prompt: int = 0,
) -> Rendered:
    """A conversation as TRL's SFTTrainer tokenizes it with `assistant_only_loss`.

    Of a row that gives its prompt apart, the first `prompt` messages bear no loss. Under a template
    without marks no token does.
    """
    own: Any = tokenizer.chat_template
    marked = marks_assistant(template or own)
    made = _applied(
        tokenizer, messages, tools, template,
        tokenize=True, return_dict=True, return_assistant_tokens_mask=marked,
    )  # fmt: skip
    ids = tuple(made["input_ids"])
    mask = tuple(made["assistant_masks"]) if marked else (0,) * len(ids)
    if prompt:
        shared = _common(_opening(tokenizer, messages[:prompt], tools, template), ids)
        mask = (0,) * shared + mask[shared:]
    text = written(tokenizer, messages, tools, template)
    return Rendered(ids, mask, text, tuple(start for start, _ in made.encodings[0].offsets))


def render_pair(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Messages,
    chosen: Messages,
    rejected: Messages,
    tools: Tools,
) -> RenderedPair:
    """Both sides as TRL's DPOTrainer tokenizes them: the tokenizer's own template, and the loss
    on every token from where either side first departs from the prompt."""
    opening = _opening(tokenizer, prompt, tools, None)
    sides = [render(tokenizer, [*prompt, *side], tools, None) for side in (chosen, rejected)]
    shared = min(_common(opening, side.ids) for side in sides)
    return RenderedPair(*(_after(side, shared) for side in sides))


def written(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, tools: Tools, template: str | None
) -> str:
    """A conversation as text, before it is cut into tokens."""
    return str(_applied(tokenizer, messages, tools, template, tokenize=False))


def _applied(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    tools: Tools,
    template: str | None,
    **how: Any,
) -> Any:
    """The template's work. It is a program of somebody else's, so it may raise anything."""
    given: Any = list(messages)
    offered: Any = list(tools) if tools is not None else None
    try:
        return tokenizer.apply_chat_template(given, tools=offered, chat_template=template, **how)
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise TemplateRefused(f"the template refuses it: {said}") from error


def _opening(
    tokenizer: PreTrainedTokenizerBase, prompt: Messages, tools: Tools, template: str | None
) -> Sequence[int]:
    """The prompt as the model is asked with it, up to where its answer begins."""
    how = {"tokenize": True, "return_dict": True, "add_generation_prompt": True}
    ids: Sequence[int] = _applied(tokenizer, prompt, tools, template, **how)["input_ids"]
    return ids


def _default(template: str | Mapping[str, str]) -> str:
    return template if isinstance(template, str) else template["default"]


def _common(ids: Sequence[int], others: Sequence[int]) -> int:
    pairs = enumerate(zip(ids, others, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(ids), len(others)))


def _after(side: Rendered, shared: int) -> Rendered:
    mask = (0,) * shared + (1,) * (len(side.ids) - shared)
    return Rendered(side.ids, mask, side.text, side.starts)


def _marked() -> list[Path]:
    found = find_spec("trl")
    if found is None or not found.submodule_search_locations:
        raise MissingExtra.of("train", "Marking the assistant's tokens")
    folder = Path(found.submodule_search_locations[0]) / "chat_templates"
    return list(folder.glob(f"*{_TRAINING}.jinja"))


@cache
def _swaps() -> dict[str, str]:
    """Each template that TRL knows, and the marked one that it puts in its place."""
    swaps = {}
    for marked in _marked():
        plain = marked.with_stem(marked.stem.removesuffix(_TRAINING))
        if plain.is_file():
            swaps[plain.read_text(encoding="utf-8")] = marked.read_text(encoding="utf-8")
    return swaps
