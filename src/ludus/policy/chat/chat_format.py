"""The chat format of a model: its chat template, and how to parse its replies.

Training and rollouts use the same one. Its template renders tools, calls and results, and marks the
assistant's tokens (`{% generation %}`). Candidates are the model's own template; TRL's training
variant of it, if TRL knows exactly this template; Ludus's template for the family that the
vocabulary's special tokens tell. The first one that passes a probe is used: all contents of a
conversation are rendered, each of the assistant's turns is marked, and a response template parses
it back into the original message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.errors import MissingExtra, TemplateRefused, TemplateUnmarked
from ludus.policy.chat.rendering import GENERATION_TAG, render, rendered_prompt_length
from ludus.policy.chat.reply_parser import ReplyParser
from ludus.policy.chat.response_templates import RESPONSE_TEMPLATES
from ludus.policy.chat.template_kwargs import (
    check_kwargs_used,
    check_template_kwargs,
    split_default_kwargs,
    with_default_kwargs,
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

_UNMARKED = "does not mark the assistant's tokens ({% generation %})"
_TRAINING_SUFFIX = "_training"

# Values that templates easily corrupt: numeric strings, non-ASCII letters, quotes, nested objects.
_ARGUMENTS = {
    "word": "naïve „Straße“",
    "code": "0042",
    "count": 17,
    "share": 0.25,
    "where": {"rows": [1, 22], "deep": {"key": "a, b"}},
}
_DESCRIPTION = "Finds what is sought."
_TYPES = {
    "word": "string",
    "code": "string",
    "count": "integer",
    "share": "number",
    "where": "object",
}
_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "find_it",
        "description": _DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {name: {"type": kind} for name, kind in _TYPES.items()},
        },
    },
}
_CALL: JsonObject = {"name": "find_it", "arguments": _ARGUMENTS}
_REPLY_TEXT = "It is there — in row 22."

_CHAT_PROBE: list[JsonObject] = [
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": _REPLY_TEXT},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "content": _REPLY_TEXT},
]
_TOOL_PROBE: list[JsonObject] = [
    {"role": "system", "content": "You seek."},
    {"role": "user", "content": "Where is it?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "type": "function", "function": _CALL}],
    },
    {"role": "tool", "content": "Row 22.", "tool_call_id": "call00001", "name": "find_it"},
    {"role": "assistant", "content": _REPLY_TEXT},
]


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A chat template with the response template that parses its replies."""

    name: str
    """The family, as TRL or Ludus calls it; `own` for a template that neither knows."""
    origin: Origin
    template: str
    """The chat template, with `chat_template_kwargs` as its defaults."""
    response_template: JsonObject
    """How to parse a reply, as a `response_template` of transformers."""
    stop_token_ids: frozenset[int]
    chat_template_kwargs: JsonObject = field(default_factory=dict)
    """Arguments that differ from the template's own defaults, such as enable_thinking."""


def find_chat_format(
    tokenizer: PreTrainedTokenizerBase,
    *,
    require_tools: bool = True,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> ChatFormat:
    """Find the chat format of a tokenizer's model.

    Unless `require_tools`, one without tools is accepted if there is no other.
    `chat_template_kwargs` override the arguments saved with the model.
    """
    check_template_kwargs(chat_template_kwargs or {})
    problems: list[str] = []
    for tools in (True,) if require_tools else (True, False):
        saved, own = split_default_kwargs(_own_template(tokenizer, tools=tools))
        kwargs = {**saved, **(chat_template_kwargs or {})}
        if not GENERATION_TAG.search(own):
            problems.append(f"its own template {_UNMARKED}" if own else "it has no chat template")
        for name, origin, plain in _template_candidates(tokenizer, own, is_saved=bool(saved)):
            # To parse replies: the tokenizer's response template, the family's, then all others.
            families = sorted(RESPONSE_TEMPLATES, key=name.startswith, reverse=True)
            responses = [RESPONSE_TEMPLATES[family] for family in families]
            if (response := getattr(tokenizer, "response_template", None)) and plain == own:
                responses.insert(0, response)
            template = with_default_kwargs(plain, kwargs)
            result = _probe_template(tokenizer, template, responses, tools=tools)
            if not isinstance(result, str):
                check_kwargs_used(kwargs, plain, template_name=name)
                return ChatFormat(name, origin, template, *result, kwargs)
            problems.append(f"the template {name} ({origin}) {result}")
    raise TemplateUnmarked(
        f"The model has no usable chat format: {'; '.join(dict.fromkeys(problems))}. Use a chat "
        f"model of a known family ({', '.join(FAMILIES)}), or a chat template with tools and "
        "{% generation %} tags."
    )


def set_chat_format(tokenizer: PreTrainedTokenizerBase, chat_format: ChatFormat) -> None:
    """Put the format's templates into a tokenizer that is saved with the trained model.

    Only if the template is Ludus's or has arguments. Any other template stays as the model's
    authors wrote it, and leads to the same chat format again.
    """
    if chat_format.origin == "ludus" or chat_format.chat_template_kwargs:
        tokenizer.chat_template = chat_format.template
        tokenizer.response_template = dict(chat_format.response_template)


def _template_candidates(
    tokenizer: PreTrainedTokenizerBase, own: str, *, is_saved: bool
) -> Iterator[tuple[str, Origin, str]]:
    """Yield name, origin and text of the templates to try, in order of preference."""
    trl = _trl_replacements()
    ludus_names = {template: name for name, template in _ludus_chat_templates().items()}
    if own in ludus_names:
        yield ludus_names[own], "ludus", own
    elif is_saved and own in (names := {marked: name for name, marked in trl.values()}):
        # Saved by `set_chat_format`: still TRL's training variant.
        yield names[own], "trl", own
    elif GENERATION_TAG.search(own):
        yield "own", "own", own
    if own in trl:
        name, marked = trl[own]
        yield name, "trl", marked
    matching = []
    for name, tokens in FAMILIES.items():
        ids = tokenizer.convert_tokens_to_ids(list(tokens))
        if None not in ids and tokenizer.unk_token_id not in ids:
            matching.append(name)
    # A vocabulary may have the tokens of several families: prefer the template's.
    matching.sort(key=lambda name: not all(token in own for token in FAMILIES[name][:2]))
    for name in matching:
        yield name, "ludus", _ludus_chat_templates()[name]


def _own_template(tokenizer: PreTrainedTokenizerBase, *, tools: bool) -> str:
    """Return the tokenizer's template; of several, the one for tools or the default."""
    if not tokenizer.chat_template:
        return ""
    return str(tokenizer.get_chat_template(None, [{}] if tools else None))


@cache
def _ludus_chat_templates() -> dict[str, str]:
    """Read the templates of Ludus's chat formats: shared macros, then the family's turns."""
    folder = files("ludus.policy.chat") / "templates"
    macros = (folder / "macros.jinja").read_text(encoding="utf-8")
    return {
        name: macros + (folder / f"{name}.jinja").read_text(encoding="utf-8") for name in FAMILIES
    }


@cache
def _trl_replacements() -> dict[str, tuple[str, str]]:
    """Map each template that TRL knows to its name and its training variant.

    They are read as files, because importing TRL takes seconds.
    """
    spec = find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra.of("train", "Marking the assistant's tokens")
    folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
    replacements = {}
    for marked in folder.glob(f"*{_TRAINING_SUFFIX}.jinja"):
        name = marked.stem.removesuffix(_TRAINING_SUFFIX)
        original = marked.with_stem(name)
        if original.is_file():
            text = original.read_text(encoding="utf-8")
            replacements[text] = (name, marked.read_text(encoding="utf-8"))
    return replacements


def _probe_template(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    response_templates: Iterable[JsonObject],
    *,
    tools: bool,
) -> tuple[JsonObject, frozenset[int]] | str:
    """Render a conversation and parse its replies.

    Returns the first response template that parses them, with the stop tokens; or what is wrong
    ("The chat template ...").
    """
    messages, offered = (_TOOL_PROBE, [_TOOL]) if tools else (_CHAT_PROBE, None)
    try:
        rendered = render(tokenizer, messages, offered, template)
    except TemplateRefused:
        return "refuses a conversation with tools" if tools else "refuses a conversation"
    required = [str(each["content"]) for each in messages if each["role"] != "assistant"]
    required += [_DESCRIPTION] if tools else []
    if any(text not in rendered.text for text in required):
        return "leaves out tools or results" if tools else "leaves out messages"
    if not any(rendered.mask):
        return _UNMARKED
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if len(rendered.spans) != len(turns):
        return "does not mark each of the assistant's turns separately"
    added = set(tokenizer.get_added_vocab().values())
    replies, stop_tokens = [], {tokenizer.eos_token_id} - {None}
    for turn, (start, end) in zip(turns, rendered.spans, strict=True):
        prompt = render(tokenizer, messages[:turn], offered, template, add_generation_prompt=True)
        length = rendered_prompt_length(prompt.ids, rendered.ids)
        if tools and length < start:
            return "does not write the start of the assistant's turn (add_generation_prompt)"
        # The prompt of a reply may end behind the start of the marked span.
        first = max(length, start)
        ids = rendered.ids[first:end]
        replies.append((rendered.ids[:first], ids, messages[turn]))
        visible = (each for each in reversed(ids) if str(tokenizer.decode([each])).strip())
        stop_tokens |= {next(visible, -1)} & added
    stop_token_ids = frozenset(stop_tokens)
    for response_template in response_templates:
        parser = ReplyParser(tokenizer, response_template, stop_token_ids)
        for prompt_ids, ids, message in replies:
            parsed = parser(prompt_ids, ids, offered)
            functions = [call.function for call in parsed.tool_calls or ()]
            calls = [
                {"name": each.name, "arguments": parse_arguments(each.arguments)}
                for each in functions
            ]
            expected = [call["function"] for call in message.get("tool_calls", ())]
            if parsed.content != message["content"] or calls != expected:
                break
        else:
            return response_template, stop_token_ids
    return "writes replies in a way that cannot be read back"
