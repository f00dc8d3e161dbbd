"""Response templates by model family: how to parse replies, for the parser of transformers.

This module is data. `chat_format` finds the one that fits a chat template.
"""

from __future__ import annotations

from ludus.data.tool_schema import JsonObject

_CONTENT_IS_FUNCTION = {"type": "function", "function": "{content}"}
_CONTENT_IS_ARGUMENTS = {
    "type": "function",
    "function": {"name": "{name}", "arguments": "{content}"},
}


def _build_template(anchor: str, end: str, **fields: JsonObject) -> JsonObject:
    """Build a response template: a reply begins after `anchor`, its content ends at `end`."""
    content = {"close_pattern": rf"(?:{end})\s*", "content": "text"}
    return {
        "defaults": {"role": "assistant"},
        "start_anchor_pattern": anchor,
        "fields": {**fields, "content": content},
    }


def _text_field(opening: str, closing: str) -> JsonObject:
    return {"open_pattern": opening, "close_pattern": rf"(?:{closing})\s*", "content": "text"}


def _calls_field(opening: str, closing: str, content: str = "json", **more: object) -> JsonObject:
    return {
        "open_pattern": opening,
        "close_pattern": closing,
        "repeats": True,
        "content": content,
        "transform": _CONTENT_IS_ARGUMENTS,
        **more,
    }


def _xml_arguments(pattern: str) -> JsonObject:
    """Arguments as one element each; the tool's schema tells which are not strings."""
    return {
        "content": "xml-inline",
        "content_args": {"tag_pattern": pattern, "value_parser": {"name": "text"}},
    }


_THINK_FIELD = _text_field("<think>", "</think>")
# The opening tag may be at the end of the prompt already.
_PREFILLED_THINK_FIELD = _text_field(r"(?:<think>)?(?=.*?</think>)", "</think>")
TAGGED_CALLS = _calls_field(r"<tool_call>", r"</tool_call>\s*", transform=_CONTENT_IS_FUNCTION)
# Some special tokens absorb the line break behind the role.
_CHATML, _IM_END = r"<\|im_start\|>assistant\s*", r"<\|im_end\|>"
_PARAMETER_CALLS = _calls_field(
    r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
    r"</tool_call>\s*",
    **_xml_arguments(r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"),
)
_BARE_CALL = r'(?:<\|python_tag\|>)?\{\s*(?:"type":\s*"function",\s*)?"name":\s*"'

RESPONSE_TEMPLATES: dict[str, JsonObject] = {
    "chatml": _build_template(
        _CHATML, _IM_END, reasoning_content=_THINK_FIELD, tool_calls=TAGGED_CALLS
    ),
    "llama3": _build_template(
        r"<\|start_header_id\|>assistant<\|end_header_id\|>\s*",
        r"<\|eot_id\|>|<\|eom_id\|>",
        reasoning_content=_THINK_FIELD,
        tool_calls=_calls_field(
            rf'{_BARE_CALL}(?P<name>[^"]*)",\s*"(?:parameters|arguments)":\s*',
            rf"\}}(?=[\s;]*(?:{_BARE_CALL}|<\|eot_id\|>|<\|eom_id\|>|$))[\s;]*",
        ),
    ),
    "gemma": _build_template(
        r"<start_of_turn>model\s*",
        "<end_of_turn>",
        reasoning_content=_THINK_FIELD,
        tool_calls=TAGGED_CALLS,
    ),
    "phi": _build_template(
        r"<\|assistant\|>\s*",
        r"<\|end\|>",
        reasoning_content=_THINK_FIELD,
        tool_calls=TAGGED_CALLS,
    ),
    "mistral": _build_template(
        r"\[/INST\]|\[/TOOL_RESULTS\]",
        "</s>",
        reasoning_content=_THINK_FIELD,
        tool_calls=_calls_field(
            r"\[TOOL_CALLS\]\s*",
            r"\s*</s>",
            transform={
                "type": "function",
                "function": {"name": "{name}", "arguments": "{arguments}"},
            },
            transform_each=True,
        ),
    ),
    "qwen3_5": _build_template(
        _CHATML, _IM_END, reasoning_content=_THINK_FIELD, tool_calls=_PARAMETER_CALLS
    ),
    "nemotron": _build_template(
        rf"{_CHATML}<think>(?:\n|</think>)?",
        _IM_END,
        reasoning_content=_PREFILLED_THINK_FIELD,
        tool_calls=_PARAMETER_CALLS,
    ),
    "glm4moe": _build_template(
        r"<\|assistant\|>",
        r"<\|user\|>|<\|observation\|>|$",
        reasoning_content=_THINK_FIELD,
        tool_calls=_calls_field(
            r"<tool_call>(?P<name>[^\s<]+)\n?",
            r"</tool_call>\s*",
            **_xml_arguments(
                r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
            ),
        ),
    ),
    "gptoss": {
        **_build_template(r"<\|start\|>assistant", ""),
        "fields": {
            "thinking": _text_field(r"<\|channel\|>analysis<\|message\|>", r"<\|end\|>"),
            "content": _text_field(
                r"<\|channel\|>(?:final|commentary)<\|message\|>", r"<\|return\|>|<\|end\|>"
            ),
            # The channel may be before or behind the tool's name.
            "tool_calls": _calls_field(
                r"(?:<\|channel\|>\w+ )?to=functions\.(?P<name>[^\s<]+)\s*"
                r"(?:<\|channel\|>\w+)?[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>",
                r"<\|call\|>\s*",
            ),
        },
    },
    "cohere": _build_template(
        r"<\|CHATBOT_TOKEN\|>(?:<\|START_RESPONSE\|>)?", r"<\|END_RESPONSE\|>"
    ),
    "text_only": _build_template(r"\Z", r"\Z"),
}
"""Response templates by model family."""
