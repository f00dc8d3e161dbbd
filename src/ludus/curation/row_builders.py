"""Build SFT rows from episodes, and DPO rows from pairs of episodes.

Arguments of tool calls become objects, as chat templates expect them. System prompt and tools are
part of the row; further columns, which trainers ignore, tell where it came from.

For SFT, if a tutor has labelled the turns of an episode, the loss is on the tutor's replies: on the
student's turns with the same calls, and on a corrected copy of each other turn. The student's
other replies are context without loss.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ludus.curation.labelled_turns import labelled_turns, reply_positions
from ludus.data.episode import Episode
from ludus.data.messages import Message, Text, messages_before_reply
from ludus.data.tool_schema import JsonObject, parse_arguments


class MalformedCallError(ValueError):
    """A tool call whose arguments are not a JSON object, which chat templates require."""


def sft_rows(episode: Episode, *, reasoning: bool = True) -> list[JsonObject]:
    """Build the rows of an episode: with a tutor possibly several, without any loss none."""
    return [
        {
            "messages": build_messages(messages, reasoning=reasoning, masked=masked),
            "tools": list(episode.tools) or None,
            "environment": episode.environment,
            "group_id": episode.group_id,
            "episode_id": episode.episode_id,
            "reward": episode.reward,
        }
        for messages, masked in _trained_messages(episode)
    ]


def dpo_row(chosen: Episode, rejected: Episode, *, reasoning: bool = True) -> JsonObject:
    """Build a row with the common `prompt`, and the `chosen` and `rejected` continuations.

    Both end with the last assistant turn: later messages from the environment have no loss.
    """
    prompt = messages_before_reply(chosen.messages)
    sides = []
    for messages in (chosen.messages[len(prompt) :], rejected.messages[len(prompt) :]):
        end = reply_positions(messages)[-1] + 1
        sides.append(build_messages(messages[:end], reasoning=reasoning))
    return {
        "prompt": build_messages(prompt, reasoning=reasoning),
        "chosen": sides[0],
        "rejected": sides[1],
        "tools": list(chosen.tools) or None,
        "environment": chosen.environment,
        "group_id": chosen.group_id,
        "chosen_id": chosen.episode_id,
        "rejected_id": rejected.episode_id,
        "chosen_reward": chosen.reward,
        "rejected_reward": rejected.reward,
    }


def build_messages(
    messages: Sequence[Message], *, reasoning: bool = True, masked: Collection[int] = ()
) -> list[JsonObject]:
    """Build the messages of a row; those at the positions `masked` bear no loss."""
    built: list[JsonObject] = []
    for at, message in enumerate(messages):
        # Text alone becomes a string, which every template accepts; next to images it stays a part.
        parts = () if isinstance(message.content, str) else message.content
        is_text = all(isinstance(part, Text) for part in parts)
        content = message.text if is_text else [part.model_dump() for part in parts]
        fields: JsonObject = {"role": message.role, "content": content}
        if message.reasoning_content is not None and reasoning:
            fields["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            fields["tool_calls"] = []
            for call in message.tool_calls:
                arguments = parse_arguments(call.function.arguments)
                if arguments is None:
                    raise MalformedCallError(call.function.arguments)
                function = {"name": call.function.name, "arguments": arguments}
                row_call = {"id": call.id, "type": "function", "function": function}
                fields["tool_calls"].append(row_call)
        if message.tool_call_id is not None:
            fields["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            fields["name"] = message.name
        if at in masked:
            fields["weight"] = 0
        built.append(fields)
    return built


def _trained_messages(episode: Episode) -> list[tuple[tuple[Message, ...], frozenset[int]]]:
    """The conversations to train on, each with the positions of its replies without loss.

    With a tutor: the episode with loss on the turns in agreement, and a copy for each correction.
    """
    if not episode.tutor_replies:
        positions = reply_positions(episode.messages)
        turns = (turn for turn in episode.explored_turns if turn < len(positions))
        masked = frozenset(positions[turn] for turn in turns)
        return [(episode.messages, masked)] if {*positions} - masked else []
    messages, trained = list(episode.messages), set[int]()
    corrections: list[tuple[tuple[Message, ...], frozenset[int]]] = []
    for turn in labelled_turns(episode):
        if turn.agreed and turn.reply is not None:
            # The ids of the calls that were made, which the results name.
            pairs = zip(turn.advice.tool_calls or (), turn.reply.tool_calls or (), strict=True)
            calls = tuple(call.model_copy(update={"id": made.id}) for call, made in pairs)
            advice = turn.advice.model_copy(update={"tool_calls": calls or None})
            messages[turn.position] = advice
            trained.add(turn.position)
        else:
            before = messages[: turn.position]
            corrections.append(((*before, turn.advice), frozenset(reply_positions(before))))
    if not trained:
        return corrections
    # What follows the last turn with loss is no context of any.
    played = tuple(messages[: max(trained) + 1])
    return [(played, frozenset(reply_positions(played)) - trained), *corrections]
