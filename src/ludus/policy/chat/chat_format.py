"""How a model is spoken to, and how its replies are read: one and the same in training and play.

A dialect is a chat template that renders tools, calls and results and marks the assistant's tokens,
with the way to read a reply back. It is the model's own where that can do all of it; else TRL's
marked variant, where the model's is, letter for letter, one that TRL knows; else one of ours, for
the family that the vocabulary's tokens tell. Whichever it is, it is proven first
(`ludus.policy.chat.template_check`).

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
from ludus.policy.chat.rendering import has_generation_tag
from ludus.policy.chat.response_templates import RESPONSE_TEMPLATES
from ludus.policy.chat.template_check import (
    CHAT_PROBE,
    TOOL_PROBE,
    Probe,
    TemplateCheck,
    check_template,
)
from ludus.policy.chat.template_defaults import (
    check_template_kwargs,
    check_template_variables,
    split_defaults,
    with_defaults,
)

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

_TRAINING_SUFFIX = "_training"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a model is spoken to, and how it is understood."""

    name: str
    """The family: TRL's name for it, or ours; `own` for a template of nobody else's."""
    origin: Origin
    template: str
    """Trained under and asked under, with the arguments as its defaults."""
    response_template: Mapping[str, Any]
    """How a reply is read, as transformers' `response_template`."""
    stop_token_ids: frozenset[int]
    """Ids that end a turn."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the template that differ from its makers' defaults, such as enable_thinking."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    origin: Origin
    template: str


def find_chat_format(
    tokenizer: PreTrainedTokenizerBase,
    *,
    tools: bool = True,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> ChatFormat:
    """The dialect of the model that this is the tokenizer of.

    Without `tools` a template will do that knows none of them. The arguments of the template are
    those that are given, over those that the model was saved with.
    """
    check_template_kwargs(chat_template_kwargs or {})
    saved, _ = split_defaults(_own_template(tokenizer, tools=tools))
    kwargs = {**saved, **(chat_template_kwargs or {})}
    faults: dict[Origin, str] = {}
    for candidate in _candidates(tokenizer, tools=tools):
        found = _try_candidate(
            tokenizer, candidate, kwargs, [TOOL_PROBE] if tools else [TOOL_PROBE, CHAT_PROBE]
        )
        if isinstance(found, ChatFormat):
            check_template_variables(kwargs, candidate.template, template_name=candidate.name)
            return found
        faults.setdefault(candidate.origin, found)
    raise TemplateUnmarked(_explain_failure(tokenizer, faults))


def find_chat_format_with_fallback(
    tokenizer: PreTrainedTokenizerBase, *, chat_template_kwargs: Mapping[str, Any] | None = None
) -> ChatFormat:
    """The dialect with tools; of a model that can only be talked to, the one without."""
    try:
        return find_chat_format(tokenizer, chat_template_kwargs=chat_template_kwargs)
    except TemplateUnmarked:
        return find_chat_format(tokenizer, tools=False, chat_template_kwargs=chat_template_kwargs)


def set_chat_format(tokenizer: PreTrainedTokenizerBase, chat_format: ChatFormat) -> None:
    """Have a tokenizer saved with what its model was trained under.

    Only where that is ours, or has arguments: any other template that is the model's own, or a
    variant of it, stays as its makers wrote it, and leads to the same dialect again.
    """
    if chat_format.origin == "ludus" or chat_format.chat_template_kwargs:
        tokenizer.chat_template = chat_format.template
        tokenizer.response_template = dict(chat_format.response_template)


def trl_families() -> list[str]:
    """The templates that TRL has marked variants of, by TRL's names for them."""
    return sorted(path.stem.removesuffix(_TRAINING_SUFFIX) for path in _trl_training_templates())


def _candidates(tokenizer: PreTrainedTokenizerBase, *, tools: bool) -> Iterator[_Candidate]:
    """What may be tried, the best first."""
    saved, own = split_defaults(_own_template(tokenizer, tools=tools))
    if own in _ludus_templates().values():
        yield next(
            _Candidate(name, "ludus", own)
            for name, text in _ludus_templates().items()
            if text == own
        )
    elif saved and (name := _trl_template_name(own)):
        # Saved by `adopt`: it is still TRL's variant.
        yield _Candidate(name, "trl", own)
    elif has_generation_tag(own):
        yield _Candidate("own", "own", own)
    if own in _trl_replacements():
        yield _Candidate(_trl_replacements()[own][0], "trl", _trl_replacements()[own][1])
    fitting = [name for name, tokens in FAMILIES.items() if _has_tokens(tokenizer, tokens)]
    # A vocabulary may hold the tokens of several: those that its template writes are meant.
    for name in sorted(
        fitting, key=lambda name: not all(map(own.__contains__, FAMILIES[name][:2]))
    ):
        yield _Candidate(name, "ludus", _ludus_templates()[name])


def _has_tokens(tokenizer: PreTrainedTokenizerBase, tokens: tuple[str, ...]) -> bool:
    ids = tokenizer.convert_tokens_to_ids(list(tokens))
    return None not in ids and tokenizer.unk_token_id not in ids


def _own_template(tokenizer: PreTrainedTokenizerBase, *, tools: bool) -> str:
    """The tokenizer's template; of several, the one that it takes with tools or without."""
    if not tokenizer.chat_template:
        return ""
    offered: Any = [{}] if tools else None
    return str(tokenizer.get_chat_template(None, offered))


def _try_candidate(
    tokenizer: PreTrainedTokenizerBase,
    candidate: _Candidate,
    kwargs: Mapping[str, Any],
    probes: list[Probe],
) -> ChatFormat | str:
    """With the first probe that it passes; else what it does wrong with the last."""
    found: TemplateCheck | str = ""
    template = with_defaults(candidate.template, kwargs)
    for probe in probes:
        found = check_template(
            tokenizer, template, _response_templates(tokenizer, candidate), probe
        )
        if isinstance(found, TemplateCheck):
            return ChatFormat(
                candidate.name,
                candidate.origin,
                template,
                found.response_template,
                found.stop_token_ids,
                kwargs,
            )
    return str(found)


def _response_templates(
    tokenizer: PreTrainedTokenizerBase, candidate: _Candidate
) -> Iterator[Mapping[str, Any]]:
    """Ways to read replies: the tokenizer's own if it is of the same template, then all of ours."""
    own = getattr(tokenizer, "response_template", None)
    if own and candidate.template == split_defaults(_own_template(tokenizer, tools=True))[1]:
        yield own
    yield from (
        made for name, made in RESPONSE_TEMPLATES.items() if candidate.name.startswith(name)
    )
    yield from RESPONSE_TEMPLATES.values()


def _explain_failure(tokenizer: PreTrainedTokenizerBase, faults: Mapping[Origin, str]) -> str:
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
def _ludus_templates() -> dict[str, str]:
    """Each of our templates as a whole: what all write alike, and then the family's turns."""
    folder = files("ludus.policy.chat") / "templates"
    words = (folder / "words.jinja").read_text(encoding="utf-8")
    return {
        name: words + (folder / f"{name}.jinja").read_text(encoding="utf-8") for name in FAMILIES
    }


def _trl_training_templates() -> list[Path]:
    found = find_spec("trl")
    if found is None or not found.submodule_search_locations:
        raise MissingExtra.of("train", "Marking the assistant's tokens")
    folder = Path(found.submodule_search_locations[0]) / "chat_templates"
    return list(folder.glob(f"*{_TRAINING_SUFFIX}.jinja"))


def _trl_template_name(template: str) -> str | None:
    """What TRL calls a marked template of its own."""
    return next((name for name, marked in _trl_replacements().values() if marked == template), None)


@cache
def _trl_replacements() -> dict[str, tuple[str, str]]:
    """Each template that TRL knows: its name, and the marked one that TRL puts in its place."""
    swaps = {}
    for marked in _trl_training_templates():
        name = marked.stem.removesuffix(_TRAINING_SUFFIX)
        plain = marked.with_stem(name)
        if plain.is_file():
            text = plain.read_text(encoding="utf-8")
            swaps[text] = (name, marked.read_text(encoding="utf-8"))
    return swaps
