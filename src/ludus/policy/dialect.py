"""How a model is spoken to, and how its replies are read: one and the same in training and play.

A dialect is a chat template that renders tools, calls and results and marks the assistant's tokens,
with the way to read a reply back. It is the model's own where that can do all of it; else TRL's
marked variant, where the model's is, letter for letter, one that TRL knows; else one of ours, for
the family that the vocabulary's tokens tell. Whichever it is, it is proven first
(`ludus.policy.proof`).

TRL itself is not imported for it, which would take seconds: its templates are files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ludus.errors import MissingExtra, TemplateUnmarked
from ludus.policy.proof import PLAY, TALK, Probe, Proof, prove
from ludus.policy.responses import RESPONSES
from ludus.policy.template_defaults import (
    check_names,
    check_values,
    split_defaults,
    with_defaults,
)
from ludus.policy.templates import marks_assistant

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Origin = Literal["own", "trl", "ludus"]

FAMILIES: dict[str, tuple[str, ...]] = {
    "hermes": ("<|im_start|>", "<|im_end|>", "<tool_call>", "<tool_response>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "phi": ("<|user|>", "<|assistant|>", "<|end|>"),
    "mistral": ("[INST]", "[/INST]", "</s>"),
}
"""Ours, by the tokens that a vocabulary must have for them."""

_TRAINING = "_training"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model is spoken to, and how it is understood."""

    name: str
    """The family: TRL's name for it, or ours; `own` for a template of nobody else's."""
    origin: Origin
    template: str
    """Trained under and asked under, with the arguments as its defaults."""
    response: Mapping[str, Any]
    """How a reply is read, as transformers' `response_template`."""
    stops: frozenset[int]
    """Ids that end a turn."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the template that differ from its makers' defaults, such as enable_thinking."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    origin: Origin
    template: str


def dialect_of(
    tokenizer: PreTrainedTokenizerBase,
    *,
    tools: bool = True,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Dialect:
    """The dialect of the model that this is the tokenizer of.

    Without `tools` a template will do that knows none of them. The arguments of the template are
    those that are given, over those that the model was saved with.
    """
    check_values(chat_template_kwargs or {})
    saved, _ = split_defaults(_own(tokenizer, tools=tools))
    kwargs = {**saved, **(chat_template_kwargs or {})}
    faults: dict[Origin, str] = {}
    for candidate in _candidates(tokenizer, tools=tools):
        found = _proven(tokenizer, candidate, kwargs, [PLAY] if tools else [PLAY, TALK])
        if isinstance(found, Dialect):
            check_names(kwargs, candidate.template, of=candidate.name)
            return found
        faults.setdefault(candidate.origin, found)
    raise TemplateUnmarked(_why(tokenizer, faults))


def any_dialect(
    tokenizer: PreTrainedTokenizerBase, *, chat_template_kwargs: Mapping[str, Any] | None = None
) -> Dialect:
    """The dialect with tools; of a model that can only be talked to, the one without."""
    try:
        return dialect_of(tokenizer, chat_template_kwargs=chat_template_kwargs)
    except TemplateUnmarked:
        return dialect_of(tokenizer, tools=False, chat_template_kwargs=chat_template_kwargs)


def adopt(tokenizer: PreTrainedTokenizerBase, dialect: Dialect) -> None:
    """Have a tokenizer saved with what its model was trained under.

    Only where that is ours, or has arguments: any other template that is the model's own, or a
    variant of it, stays as its makers wrote it, and leads to the same dialect again.
    """
    if dialect.origin == "ludus" or dialect.chat_template_kwargs:
        tokenizer.chat_template = dialect.template
        tokenizer.response_template = dict(dialect.response)


def families() -> list[str]:
    """The templates that TRL has marked variants of, by TRL's names for them."""
    return sorted(path.stem.removesuffix(_TRAINING) for path in _marked())


def _candidates(tokenizer: PreTrainedTokenizerBase, *, tools: bool) -> Iterator[_Candidate]:
    """What may be tried, the best first."""
    saved, own = split_defaults(_own(tokenizer, tools=tools))
    if own in _ours().values():
        yield next(_Candidate(name, "ludus", own) for name, text in _ours().items() if text == own)
    elif saved and (name := _trl_name(own)):
        # Saved by `adopt`: it is still TRL's variant.
        yield _Candidate(name, "trl", own)
    elif marks_assistant(own):
        yield _Candidate("own", "own", own)
    if own in _swaps():
        yield _Candidate(_swaps()[own][0], "trl", _swaps()[own][1])
    fitting = [name for name, tokens in FAMILIES.items() if _has(tokenizer, tokens)]
    # A vocabulary may hold the tokens of several: those that its template writes are meant.
    for name in sorted(
        fitting, key=lambda name: not all(map(own.__contains__, FAMILIES[name][:2]))
    ):
        yield _Candidate(name, "ludus", _ours()[name])


def _has(tokenizer: PreTrainedTokenizerBase, tokens: tuple[str, ...]) -> bool:
    ids = tokenizer.convert_tokens_to_ids(list(tokens))
    return None not in ids and tokenizer.unk_token_id not in ids


def _own(tokenizer: PreTrainedTokenizerBase, *, tools: bool) -> str:
    """The tokenizer's template; of several, the one that it takes with tools or without."""
    if not tokenizer.chat_template:
        return ""
    offered: Any = [{}] if tools else None
    return str(tokenizer.get_chat_template(None, offered))


def _proven(
    tokenizer: PreTrainedTokenizerBase,
    candidate: _Candidate,
    kwargs: Mapping[str, Any],
    probes: list[Probe],
) -> Dialect | str:
    """With the first probe that it passes; else what it does wrong with the last."""
    found: Proof | str = ""
    template = with_defaults(candidate.template, kwargs)
    for probe in probes:
        found = prove(tokenizer, template, _responses(tokenizer, candidate), probe)
        if isinstance(found, Proof):
            return Dialect(
                candidate.name, candidate.origin, template, found.response, found.stops, kwargs
            )
    return str(found)


def _responses(
    tokenizer: PreTrainedTokenizerBase, candidate: _Candidate
) -> Iterator[Mapping[str, Any]]:
    """Ways to read replies: the tokenizer's own if it is of the same template, then all of ours."""
    own = getattr(tokenizer, "response_template", None)
    if own and candidate.template == split_defaults(_own(tokenizer, tools=True))[1]:
        yield own
    yield from (made for name, made in RESPONSES.items() if candidate.name.startswith(name))
    yield from RESPONSES.values()


def _why(tokenizer: PreTrainedTokenizerBase, faults: Mapping[Origin, str]) -> str:
    if not tokenizer.chat_template:
        own = "There is no chat template"
    else:
        fault = faults.get("own") or faults.get("trl")
        fault = fault or "does not mark the assistant's tokens ({% generation %})"
        own = f"The chat template {fault}"
    ours = faults.get("ludus")
    known = f"Ludus's own {ours}" if ours else "its vocabulary tells of no family that Ludus knows"
    return (
        f"{own}, and {known}. Name a chat model of a known family ({', '.join(FAMILIES)}), or give "
        "it a chat template with tools and {% generation %} marks."
    )


@cache
def _ours() -> dict[str, str]:
    """Each of our templates as a whole: what all write alike, and then the family's turns."""
    folder = files("ludus.policy") / "chat"
    words = (folder / "words.jinja").read_text(encoding="utf-8")
    return {
        name: words + (folder / f"{name}.jinja").read_text(encoding="utf-8") for name in FAMILIES
    }


def _marked() -> list[Path]:
    found = find_spec("trl")
    if found is None or not found.submodule_search_locations:
        raise MissingExtra.of("train", "Marking the assistant's tokens")
    folder = Path(found.submodule_search_locations[0]) / "chat_templates"
    return list(folder.glob(f"*{_TRAINING}.jinja"))


def _trl_name(template: str) -> str | None:
    """What TRL calls a marked template of its own."""
    return next((name for name, marked in _swaps().values() if marked == template), None)


@cache
def _swaps() -> dict[str, tuple[str, str]]:
    """Each template that TRL knows: its name, and the marked one that TRL puts in its place."""
    swaps = {}
    for marked in _marked():
        name = marked.stem.removesuffix(_TRAINING)
        plain = marked.with_stem(name)
        if plain.is_file():
            text = plain.read_text(encoding="utf-8")
            swaps[text] = (name, marked.read_text(encoding="utf-8"))
    return swaps
