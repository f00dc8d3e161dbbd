"""Ends the rollouts of TRL's tool loop whose environment says that its episode is over.

TRL generates another turn after every tool call: after the end of an episode too, and what is
sampled then is trained on. Here such a rollout ends with the reply of the tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

Ids = list[int]


class FinishedEpisodesMixin:
    """Mixed into TRL's GRPOTrainer. An environment that has ended has a true `done` or `_done`."""

    _loop_ids: tuple[Sequence[Ids], Sequence[Ids]] | None = None
    """Prompts and completions of the tool loop that runs, which updates them."""
    _loop_rows: Sequence[int] = ()
    """The rows that may still be in that loop."""

    def _tool_call_loop(
        self, prompts: Any, prompt_ids: list[Ids], completion_ids: list[Ids], *rest: Any
    ) -> Any:
        self._loop_ids, self._loop_rows = (prompt_ids, completion_ids), range(len(prompt_ids))
        try:
            return cast(Any, super())._tool_call_loop(prompts, prompt_ids, completion_ids, *rest)
        finally:
            self._loop_ids = None

    def _generate_single_turn(
        self, prompt_ids: list[Ids], images: Any, multimodal_fields: Any, *rest: Any, **more: Any
    ) -> tuple[list[Ids], list[list[float]] | None]:
        generate = cast(Any, super())._generate_single_turn
        unfinished = self._unfinished_rows(prompt_ids)
        # Images are not laid out by rows.
        if len(unfinished) == len(prompt_ids) or images or multimodal_fields:
            generated: tuple[list[Ids], list[list[float]] | None] = generate(
                prompt_ids, images, multimodal_fields, *rest, **more
            )
            return generated
        ids: list[Ids] = [[] for _ in prompt_ids]
        logprobs: list[list[float]] | None = [[] for _ in prompt_ids]
        if unfinished:
            rows = [prompt_ids[row] for row in unfinished]
            new_ids, new_logprobs = generate(rows, images, multimodal_fields, *rest, **more)
            for number, row in enumerate(unfinished):
                ids[row] = new_ids[number]
                if new_logprobs is not None and logprobs is not None:
                    logprobs[row] = new_logprobs[number]
            logprobs = None if new_logprobs is None else logprobs
        return ids, logprobs

    def _unfinished_rows(self, sequences: Sequence[Ids]) -> list[int]:
        """Which of the sequences belong to episodes that go on: all outside of the tool loop."""
        trainer = cast(Any, self)
        # Ranks must generate together.
        alone = trainer.accelerator.num_processes == 1
        if self._loop_ids is None or not trainer.environments or not alone:
            return list(range(len(sequences)))
        prompt_ids, completion_ids = self._loop_ids
        starts = {row: prompt_ids[row] + completion_ids[row] for row in self._loop_rows}
        rows = match_rows(sequences, starts)
        if rows is None:
            return list(range(len(sequences)))
        unfinished = [
            number for number, row in enumerate(rows) if not is_done(trainer.environments[row])
        ]
        # The others leave the loop: what they have could also be how another one has begun.
        self._loop_rows = [rows[number] for number in unfinished]
        return unfinished


def match_rows(sequences: Sequence[Ids], starts: Mapping[int, Ids]) -> list[int] | None:
    """For each sequence the row that it continues; None if one continues no row.

    The sequences are in the order of the rows, of which some are missing.
    """
    rows = iter(starts.items())
    matched = []
    for sequence in sequences:
        for row, start in rows:
            if sequence[: len(start)] == start:
                matched.append(row)
                break
        else:
            return None
    return matched


def is_done(environment: Any) -> bool:
    return any(getattr(environment, name, False) is True for name in ("done", "_done"))
