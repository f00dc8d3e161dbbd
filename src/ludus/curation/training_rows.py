"""What trainers read: an episode as a row for SFT, two attempts at a task as one for DPO.

Pure functions. A tool call's arguments become an object, as chat templates want them; the system
prompt and the tools come along. Where a row came from stands in columns that trainers pass over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ludus.curation.tool_call_text import get_call_format, render_messages
from ludus.data.content import Text
from ludus.data.episode import Episode
from ludus.data.messages import Message, messages_before_reply
from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.errors import ConfigError


class MalformedCallError(ValueError):
    """A call whose arguments are no JSON object, which is what chat templates take."""


@dataclass(frozen=True, slots=True)
class RowConfig:
    """What a row holds of an episode."""

    system: bool = True
    """The system prompt. Without, a conversation begins with the question."""
    tool_results: bool = True
    """What tools answered. Without, a row is a prompt and what the model said."""
    reasoning: bool = True
    last_turn: bool = False
    """Train on the last turn alone: the row is a prompt with all that came before it, and a
    completion."""
    render: str | None = None
    """A family of models, in whose text form calls are written."""

    def __post_init__(self) -> None:
        if self.render is not None:
            get_call_format(self.render)


DEFAULT_ROW_CONFIG = RowConfig()


def sft_row(episode: Episode, config: RowConfig = DEFAULT_ROW_CONFIG) -> JsonObject:
    """`messages` and `tools`; `prompt` and `completion` where only the last turn is learned."""
    messages = _build_messages(episode.messages, config)
    row: JsonObject = {"messages": messages}
    if config.last_turn:
        last = max(at for at, message in enumerate(messages) if message["role"] == "assistant")
        row = {"prompt": messages[:last], "completion": [messages[last]]}
    return {
        **row,
        "tools": list(episode.tools) or None,
        "environment": episode.environment,
        "group_id": episode.group_id,
        "episode_id": episode.episode_id,
        "reward": episode.reward,
    }


def dpo_row(
    chosen: Episode, rejected: Episode, config: RowConfig = DEFAULT_ROW_CONFIG
) -> JsonObject:
    """`prompt`, `chosen`, `rejected` and `tools`: what was the same, and the two ways from there.

    A side ends with the model's last word: what the environment said to it teaches nothing.
    """
    if config.last_turn:
        raise ConfigError("--last-turn is for SFT: two attempts part ways at their first turn.")
    prompt = messages_before_reply(chosen.messages)
    return {
        "prompt": _build_messages(prompt, config),
        "chosen": _build_messages(_trim_after_last_reply(chosen.messages[len(prompt) :]), config),
        "rejected": _build_messages(
            _trim_after_last_reply(rejected.messages[len(prompt) :]), config
        ),
        "tools": list(chosen.tools) or None,
        "environment": chosen.environment,
        "group_id": chosen.group_id,
        "chosen_id": chosen.episode_id,
        "rejected_id": rejected.episode_id,
        "chosen_reward": chosen.reward,
        "rejected_reward": rejected.reward,
    }


def check_calls(messages: Sequence[Message]) -> None:
    """Raise `MalformedCall` where the arguments of a call are no JSON object."""
    for message in messages:
        for call in message.tool_calls or ():
            _parse_arguments(call.function.arguments)


def without_call_ids(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """What messages say, without the ids of their calls: equal where two say the same."""
    return [
        {
            **{name: value for name, value in message.items() if name != "tool_call_id"},
            "tool_calls": [call["function"] for call in message.get("tool_calls") or ()],
        }
        for message in messages
    ]


def _trim_after_last_reply(messages: Sequence[Message]) -> Sequence[Message]:
    last = max(at for at, message in enumerate(messages) if message.role == "assistant")
    return messages[: last + 1]


def _build_messages(messages: Sequence[Message], config: RowConfig) -> list[JsonObject]:
    made = [
        _build_message(message, config)
        for message in messages
        if (config.tool_results or message.role != "tool")
        and (config.system or message.role != "system")
    ]
    return (
        render_messages(made, get_call_format(config.render)) if config.render is not None else made
    )


def _build_content(message: Message) -> str | list[JsonObject]:
    """Words as a string, which every template takes; among pictures they keep their place."""
    parts = () if isinstance(message.content, str) else message.content
    if all(isinstance(part, Text) for part in parts):
        return message.text
    return [part.model_dump() for part in parts]


def _build_message(message: Message, config: RowConfig) -> JsonObject:
    made: JsonObject = {"role": message.role}
    made["content"] = _build_content(message)
    if message.reasoning_content is not None and config.reasoning:
        made["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _parse_arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        made["name"] = message.name
    return made


def _parse_arguments(text: str) -> JsonObject:
    read = parse_arguments(text)
    if read is None:
        raise MalformedCallError(text)
    return read
