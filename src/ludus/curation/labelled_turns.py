"""Turns that a tutor has labelled, and whether the student agreed with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ludus.data.episode import Episode
from ludus.data.messages import Message
from ludus.data.tool_schema import parse_arguments


def has_malformed_call(message: Message) -> bool:
    """Whether a turn has a call whose arguments are not a JSON object."""
    calls = message.tool_calls or ()
    return any(parse_arguments(call.function.arguments) is None for call in calls)


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
        """Whether student and tutor make the same calls, or without calls write the same text."""
        if self.reply is None:
            return False
        if not self.reply.tool_calls and not self.advice.tool_calls:
            return self.reply.text.strip() == self.advice.text.strip()
        made, advised = (
            [
                (call.function.name, parse_arguments(call.function.arguments))
                for call in message.tool_calls or ()
            ]
            for message in (self.reply, self.advice)
        )
        return not has_malformed_call(self.reply) and made == advised


def labelled_turns(episode: Episode) -> Iterator[LabelledTurn]:
    """Yield the turns with a usable reply of the tutor.

    Labels end at a call of the student whose arguments are not a JSON object: no chat template can
    render the rest.
    """
    positions = reply_positions(episode.messages)
    for turn, advice in enumerate(episode.tutor_replies):
        has_reply = turn < len(positions)
        at = positions[turn] if has_reply else len(episode.messages)
        reply = episode.messages[at] if has_reply else None
        if advice is not None and not has_malformed_call(advice):
            yield LabelledTurn(at, advice, reply, turn in episode.explored_turns)
        if reply is None or has_malformed_call(reply):
            return


def count_agreement(episode: Episode) -> tuple[int, int]:
    """In how many turns student and tutor agree, and how many are labelled."""
    agreed = [turn.agreed for turn in labelled_turns(episode)]
    return sum(agreed), len(agreed)


def reply_positions(messages: Sequence[Message]) -> list[int]:
    return [at for at, message in enumerate(messages) if message.role == "assistant"]
