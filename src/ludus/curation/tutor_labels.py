"""The turns of an episode that a tutor has labelled, and what is trained on of them.

The loss is on the tutor's replies: on the student's turns with the same calls, and on a corrected
copy of each other one. What the student did otherwise is context without loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ludus.data.episode import Episode
from ludus.data.messages import Message
from ludus.data.tool_schema import parse_arguments


@dataclass(frozen=True, slots=True)
class LabelledTurn:
    """A turn for which the tutor has a reply."""

    position: int
    """The index of the student's reply among the messages, or their number if there is none."""
    advice: Message
    reply: Message | None
    """The student's reply; None if it said nothing."""
    explored: bool

    @property
    def agreed(self) -> bool:
        """Whether student and tutor make the same calls, or say the same if they make none."""
        if self.reply is None:
            return False
        if not self.reply.tool_calls and not self.advice.tool_calls:
            return self.reply.text.strip() == self.advice.text.strip()
        return not has_malformed_call(self.reply) and _calls(self.reply) == _calls(self.advice)


@dataclass(frozen=True, slots=True)
class TrainedMessages:
    """The messages of a row, and which of the replies among them bear no loss."""

    messages: tuple[Message, ...]
    masked: frozenset[int] = frozenset()
    """Positions of replies without loss."""

    @property
    def trains_last_reply(self) -> bool:
        return _reply_positions(self.messages)[-1] not in self.masked


def labelled_turns(episode: Episode) -> Iterator[LabelledTurn]:
    """Yield the turns with a usable reply of the tutor.

    A call of the student whose arguments are not a JSON object is the last one that is labelled: no
    chat template can render what follows it.
    """
    positions = _reply_positions(episode.messages)
    for turn, advice in enumerate(episode.tutor_replies):
        has_reply = turn < len(positions)
        at = positions[turn] if has_reply else len(episode.messages)
        reply = episode.messages[at] if has_reply else None
        if advice is not None and not has_malformed_call(advice):
            yield LabelledTurn(at, advice, reply, turn in episode.explored_turns)
        if reply is None or has_malformed_call(reply):
            return


def trained_messages(episode: Episode) -> list[TrainedMessages]:
    """The conversations to train on: with a tutor possibly several, without any loss none."""
    if episode.tutor_replies:
        return _corrected_messages(episode)
    positions = _reply_positions(episode.messages)
    masked = frozenset(positions[turn] for turn in episode.explored_turns if turn < len(positions))
    return [TrainedMessages(episode.messages, masked)] if {*positions} - masked else []


def count_agreement(episode: Episode) -> tuple[int, int]:
    """In how many turns student and tutor agree, and how many are labelled."""
    agreed = [turn.agreed for turn in labelled_turns(episode)]
    return sum(agreed), len(agreed)


def has_malformed_call(message: Message) -> bool:
    """Whether the arguments of a call are not a JSON object."""
    calls = message.tool_calls or ()
    return any(parse_arguments(call.function.arguments) is None for call in calls)


def _corrected_messages(episode: Episode) -> list[TrainedMessages]:
    """The episode with loss where both agree, and a row for each correction."""
    messages, trained = list(episode.messages), set[int]()
    corrections: list[TrainedMessages] = []
    for turn in labelled_turns(episode):
        if turn.agreed and turn.reply is not None:
            messages[turn.position] = _with_call_ids_of(turn.advice, turn.reply)
            trained.add(turn.position)
        else:
            before = messages[: turn.position]
            masked = frozenset(_reply_positions(before))
            corrections.append(TrainedMessages((*before, turn.advice), masked))
    if not trained:
        return corrections
    # What follows the last turn with loss is no context of any.
    played = tuple(messages[: max(trained) + 1])
    masked = frozenset(_reply_positions(played)) - trained
    return [TrainedMessages(played, masked), *corrections]


def _reply_positions(messages: Sequence[Message]) -> list[int]:
    return [at for at, message in enumerate(messages) if message.role == "assistant"]


def _calls(message: Message) -> list[tuple[str, object]]:
    return [
        (call.function.name, parse_arguments(call.function.arguments))
        for call in message.tool_calls or ()
    ]


def _with_call_ids_of(advice: Message, reply: Message) -> Message:
    """The tutor's reply under the ids of the calls that were made, which the results name."""
    pairs = zip(advice.tool_calls or (), reply.tool_calls or (), strict=True)
    calls = tuple(call.model_copy(update={"id": made.id}) for call, made in pairs)
    return advice.model_copy(update={"tool_calls": calls or None})
