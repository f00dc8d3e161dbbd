"""The text of a completion while it is sampled, up to a stop sequence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT_CHAR = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Decodes tokens as they come, and watches for stop sequences.

    Text is held back while it could still change: an incomplete character, or as many characters
    as a stop sequence may begin with.

    Args:
        stop_token_ids: Tokens that end the completion; they are not part of its text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        stop: Sequence[str] = (),
        stop_token_ids: Collection[int] = (),
    ) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.text = ""
        """All text so far, without what a stop sequence cuts off."""
        self.reached_stop = False
        self._tokenizer, self._stop = tokenizer, stop
        self._num_held = max((len(each) - 1 for each in stop), default=0)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._context_start = self._decoded_end = 0
        self._num_sent = 0

    def feed(self, ids: Sequence[int], logprobs: Sequence[float]) -> str:
        """Take new tokens, up to the one that completes a stop sequence; return new text."""
        # One by one if a stop sequence may end in the middle.
        step = 1 if self._stop else max(1, len(ids))
        for start in range(0, len(ids), step):
            if self.reached_stop:
                break
            self.ids += ids[start : start + step]
            self.logprobs += logprobs[start : start + step]
            self._decode()
            self._cut_at_stop()
        num_held = 0 if self.reached_stop else self._num_held
        return self._take(max(0, len(self.text) - num_held))

    def finish(self) -> str:
        """Return the text that was held back."""
        if not self.reached_stop:
            self._decode(complete=True)
            self._cut_at_stop()
        return self._take(len(self.text))

    def _decode(self, *, complete: bool = False) -> None:
        """Decode the newest tokens beside a few earlier ones, on which their text may depend."""
        end = len(self.ids)
        while end and self.ids[end - 1] in self._stop_token_ids:
            end -= 1
        before = self._decode_ids(self.ids[self._context_start : self._decoded_end])
        after = self._decode_ids(self.ids[self._context_start : end])
        if complete or (len(after) > len(before) and not after.endswith(REPLACEMENT_CHAR)):
            self.text += after[len(before) :]
            self._context_start, self._decoded_end = self._decoded_end, end

    def _decode_ids(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _cut_at_stop(self) -> None:
        positions = [self.text.find(stop, self._num_sent) for stop in self._stop]
        first = min((position for position in positions if position >= 0), default=None)
        if first is not None:
            self.text, self.reached_stop = self.text[:first], True

    def _take(self, end: int) -> str:
        start, self._num_sent = self._num_sent, max(self._num_sent, end)
        return self.text[start:end]
