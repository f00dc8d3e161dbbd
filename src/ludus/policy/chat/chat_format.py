"""The chat format of a model: its chat template, and how to parse its replies.

The same format is used in training and in rollouts. Its template renders tools, calls and results,
and marks the assistant's tokens (`{% generation %}`). Candidates are, in this order:

1. the model's own template;
2. TRL's training variant of it, if the model's template is exactly one that TRL knows;
3. Ludus's template for the family that the vocabulary's special tokens tell.

The first one that passes `ludus.policy.chat.template_probe` is used. TRL's templates are read as
files, because importing TRL takes seconds.
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
from ludus.policy.chat.template_kwargs import (
    check_kwargs_used,
    check_template_kwargs,
    split_default_kwargs,
    with_default_kwargs,
)
from ludus.policy.chat.template_probe import (
    CHAT_PROBE,
    TOOL_PROBE,
    Probe,
    ProbeResult,
    probe_template,
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
"""Ludus's templates, and the tokens that a vocabulary must have for each."""

_TRAINING_SUFFIX = "_training"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A chat template with the response template that parses its replies."""

    name: str
    """The family, as TRL or Ludus calls it; `own` for a template that neither knows."""
    origin: Origin
    template: str
    """The chat template, with `chat_template_kwargs` as its defaults."""
    response_template: Mapping[str, Any]
    """How to parse a reply, as a `response_template` of transformers."""
    stop_token_ids: frozenset[int]
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that differ from the template's own defaults, such as enable_thinking."""


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
    """Find the chat format of a tokenizer's model.

    Without `tools`, templates that do not support tools are accepted too. `chat_template_kwargs`
    override those that the model was saved with.
    """
    check_template_kwargs(chat_template_kwargs or {})
    saved, _ = split_default_kwargs(_own_template(tokenizer, tools=tools))
    kwargs = {**saved, **(chat_template_kwargs or {})}
    probes = [TOOL_PROBE] if tools else [TOOL_PROBE, CHAT_PROBE]
    problems: dict[Origin, str] = {}
    for candidate in _template_candidates(tokenizer, tools=tools):
        result = _try_candidate(tokenizer, candidate, kwargs, probes)
        if isinstance(result, ChatFormat):
            check_kwargs_used(kwargs, candidate.template, template_name=candidate.name)
            return result
        problems.setdefault(candidate.origin, result)
    raise TemplateUnmarked(_explain_failure(tokenizer, problems))


def find_chat_format_with_fallback(
    tokenizer: PreTrainedTokenizerBase, *, chat_template_kwargs: Mapping[str, Any] | None = None
) -> ChatFormat:
    """Find the chat format with tools or, if there is none, the one without."""
    try:
        return find_chat_format(tokenizer, chat_template_kwargs=chat_template_kwargs)
    except TemplateUnmarked:
        return find_chat_format(tokenizer, tools=False, chat_template_kwargs=chat_template_kwargs)


def set_chat_format(tokenizer: PreTrainedTokenizerBase, chat_format: ChatFormat) -> None:
    """Put the format's templates into a tokenizer that is saved with the trained model.

    Only if the template is Ludus's or has arguments. Any other template stays as the model's
    authors wrote it, and leads to the same chat format again.
    """
    if chat_format.origin == "ludus" or chat_format.chat_template_kwargs:
        tokenizer.chat_template = chat_format.template
        tokenizer.response_template = dict(chat_format.response_template)


def trl_chat_formats() -> list[str]:
    """Return TRL's names of the chat formats that it has training templates of."""
    return sorted(path.stem.removesuffix(_TRAINING_SUFFIX) for path in _trl_training_templates())


def _template_candidates(
    tokenizer: PreTrainedTokenizerBase, *, tools: bool
) -> Iterator[_Candidate]:
    """Yield the templates to try, in order of preference."""
    saved, own = split_default_kwargs(_own_template(tokenizer, tools=tools))
    ludus_names = {template: name for name, template in _ludus_chat_templates().items()}
    if own in ludus_names:
        yield _Candidate(ludus_names[own], "ludus", own)
    elif saved and (
        names := [name for name, marked in _trl_replacements().values() if marked == own]
    ):
        # Saved by `set_chat_format`: still TRL's training variant.
        yield _Candidate(names[0], "trl", own)
    elif has_generation_tag(own):
        yield _Candidate("own", "own", own)
    if own in _trl_replacements():
        name, marked = _trl_replacements()[own]
        yield _Candidate(name, "trl", marked)
    matching = []
    for name, tokens in FAMILIES.items():
        ids = tokenizer.convert_tokens_to_ids(list(tokens))
        if None not in ids and tokenizer.unk_token_id not in ids:
            matching.append(name)
    # A vocabulary may have the tokens of several families: prefer those that its template writes.
    matching.sort(key=lambda name: not all(token in own for token in FAMILIES[name][:2]))
    for name in matching:
        yield _Candidate(name, "ludus", _ludus_chat_templates()[name])


def _own_template(tokenizer: PreTrainedTokenizerBase, *, tools: bool) -> str:
    """Return the tokenizer's template; of several, the one for tools or the default."""
    if not tokenizer.chat_template:
        return ""
    some_tools: Any = [{}] if tools else None
    return str(tokenizer.get_chat_template(None, some_tools))


def _try_candidate(
    tokenizer: PreTrainedTokenizerBase,
    candidate: _Candidate,
    kwargs: Mapping[str, Any],
    probes: list[Probe],
) -> ChatFormat | str:
    """Return the chat format if a probe passes, otherwise what is wrong with the last one."""
    result: ProbeResult | str = ""
    template = with_default_kwargs(candidate.template, kwargs)
    for probe in probes:
        responses = _response_templates(tokenizer, candidate)
        result = probe_template(tokenizer, template, responses, probe)
        if isinstance(result, ProbeResult):
            return ChatFormat(
                candidate.name,
                candidate.origin,
                template,
                result.response_template,
                result.stop_token_ids,
                kwargs,
            )
    return str(result)


def _response_templates(
    tokenizer: PreTrainedTokenizerBase, candidate: _Candidate
) -> Iterator[Mapping[str, Any]]:
    """Yield response templates to try: the tokenizer's own, the family's, then all others."""
    own = getattr(tokenizer, "response_template", None)
    if own and candidate.template == split_default_kwargs(_own_template(tokenizer, tools=True))[1]:
        yield own
    for family, response_template in RESPONSE_TEMPLATES.items():
        if candidate.name.startswith(family):
            yield response_template
    yield from RESPONSE_TEMPLATES.values()


def _explain_failure(tokenizer: PreTrainedTokenizerBase, problems: Mapping[Origin, str]) -> str:
    if not tokenizer.chat_template:
        own = "There is no chat template"
    else:
        problem = problems.get("own") or problems.get("trl")
        problem = problem or "does not mark the assistant's tokens ({% generation %})"
        own = f"The chat template {problem}"
    ours = problems.get("ludus")
    other = f"that of Ludus {ours}" if ours else "the vocabulary is of no family that Ludus knows"
    return (
        f"{own}, and {other}. Use a chat model of a known family ({', '.join(FAMILIES)}), or a "
        "chat template with tools and {% generation %} tags."
    )


@cache
def _ludus_chat_templates() -> dict[str, str]:
    """Read the templates of Ludus's chat formats: shared macros, then the family's turns."""
    folder = files("ludus.policy.chat") / "templates"
    macros = (folder / "macros.jinja").read_text(encoding="utf-8")
    return {
        name: macros + (folder / f"{name}.jinja").read_text(encoding="utf-8") for name in FAMILIES
    }


def _trl_training_templates() -> list[Path]:
    spec = find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra.of("train", "Marking the assistant's tokens")
    folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
    return list(folder.glob(f"*{_TRAINING_SUFFIX}.jinja"))


@cache
def _trl_replacements() -> dict[str, tuple[str, str]]:
    """Map each template that TRL knows to its name and its training variant."""
    replacements = {}
    for marked in _trl_training_templates():
        name = marked.stem.removesuffix(_TRAINING_SUFFIX)
        original = marked.with_stem(name)
        if original.is_file():
            text = original.read_text(encoding="utf-8")
            replacements[text] = (name, marked.read_text(encoding="utf-8"))
    return replacements
