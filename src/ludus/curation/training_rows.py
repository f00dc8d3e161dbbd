"""Build SFT rows from episodes, and DPO rows from pairs of episodes.

Pure functions. Arguments of tool calls become objects, as chat templates expect them. System prompt
and tools are part of the row; further columns, which trainers ignore, tell where it came from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from ludus.curation.tool_call_text import get_call_format, render_messages
from ludus.curation.tutor_labels import TrainedMessages, labelled_turns, trained_messages
from ludus.data.config import check_field_types
from ludus.data.episode import Episode
from ludus.data.messages import Message, Text, messages_before_reply
from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.errors import ConfigError
from ludus.options import Option


class MalformedCallError(ValueError):
    """A tool call whose arguments are not a JSON object, which chat templates require."""


@dataclass(frozen=True, kw_only=True)
class RowConfig:
    """What a row contains of an episode."""

    system: Annotated[bool, Option("Rows", advanced=True)] = True
    """Keep the system prompt."""
    tool_results: Annotated[bool, Option("Rows", advanced=True)] = True
    """Keep tool results; without them a row is the prompt and the assistant turns."""
    reasoning: Annotated[bool, Option("Rows")] = True
    """Keep the reasoning of assistant turns."""
    last_turn: Annotated[bool, Option("Rows", advanced=True)] = False
    """Train on the last turn only: a row is the `prompt` before it, and the `completion`."""
    tool_call_format: Annotated[str | None, Option("Rows", advanced=True)] = None
    """Write tool calls as text, in the form of this model family: qwen3, qwen2.5, qwen3.5, llama3,
    glm4, hermes or smollm."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.tool_call_format is not None:
            get_call_format(self.tool_call_format)


DEFAULT_ROW_CONFIG = RowConfig()


def sft_rows(episode: Episode, config: RowConfig = DEFAULT_ROW_CONFIG) -> list[JsonObject]:
    """Build the rows of an episode: with a tutor possibly several, without any loss none."""
    return [
        sft_row(episode, config, trained=trained)
        for trained in trained_messages(episode)
        if not config.last_turn or trained.trains_last_reply
    ]


def sft_row(
    episode: Episode,
    config: RowConfig = DEFAULT_ROW_CONFIG,
    *,
    trained: TrainedMessages | None = None,
) -> JsonObject:
    """Build a row with `messages`, or with `prompt` and `completion` if `last_turn` is set.

    `trained` are the messages to train on, by default the episode's.
    """
    trained = trained or TrainedMessages(episode.messages)
    masked = () if config.last_turn else trained.masked
    messages = _build_messages(trained.messages, config, masked)
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
    """Build a row with the common `prompt`, and the `chosen` and `rejected` continuations.

    Both end with the last assistant turn: later messages from the environment have no loss.
    """
    if config.last_turn:
        raise ConfigError("`last_turn` requires `to` sft, got dpo.")
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


def tutor_pair_rows(
    episode: Episode, config: RowConfig = DEFAULT_ROW_CONFIG
) -> Iterator[JsonObject]:
    """Build a DPO row for each turn that the tutor corrects: its reply against the student's.

    The reward of a single reply is not known; that of the rejected side is the episode's.
    """
    for turn in labelled_turns(episode):
        if turn.agreed or turn.explored or turn.reply is None:
            continue
        try:
            sides = [_build_messages([side], config) for side in (turn.advice, turn.reply)]
            prompt = _build_messages(episode.messages[: turn.position], config)
        except MalformedCallError:
            continue
        yield {
            "prompt": prompt,
            "chosen": sides[0],
            "rejected": sides[1],
            "tools": list(episode.tools) or None,
            "environment": episode.environment,
            "group_id": episode.group_id,
            "chosen_id": episode.episode_id,
            "rejected_id": episode.episode_id,
            "chosen_reward": None,
            "rejected_reward": episode.reward,
        }


def check_calls(messages: Sequence[Message]) -> None:
    """Raise `MalformedCallError` if the arguments of a call are not a JSON object."""
    for message in messages:
        for call in message.tool_calls or ():
            _parse_row_arguments(call.function.arguments)


def _trim_after_last_reply(messages: Sequence[Message]) -> Sequence[Message]:
    last = max(at for at, message in enumerate(messages) if message.role == "assistant")
    return messages[: last + 1]


def _build_messages(
    messages: Sequence[Message], config: RowConfig, masked: Collection[int] = ()
) -> list[JsonObject]:
    """Build the messages of a row; those at the positions `masked` bear no loss."""
    built: list[JsonObject] = []
    for at, message in enumerate(messages):
        if (message.role == "tool" and not config.tool_results) or (
            message.role == "system" and not config.system
        ):
            continue
        # Text alone becomes a string, which every template accepts; next to images it stays a part.
        parts = () if isinstance(message.content, str) else message.content
        is_text = all(isinstance(part, Text) for part in parts)
        content = message.text if is_text else [part.model_dump() for part in parts]
        fields: JsonObject = {"role": message.role, "content": content}
        if message.reasoning_content is not None and config.reasoning:
            fields["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _parse_row_arguments(call.function.arguments),
                    },
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            fields["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            fields["name"] = message.name
        if at in masked:
            fields["weight"] = 0
        built.append(fields)
    if config.tool_call_format is None:
        return built
    return render_messages(built, get_call_format(config.tool_call_format))


def _parse_row_arguments(text: str) -> JsonObject:
    """Parse the arguments of a call for a training row; raise `MalformedCallError`."""
    arguments = parse_arguments(text)
    if arguments is None:
        raise MalformedCallError(text)
    return arguments
