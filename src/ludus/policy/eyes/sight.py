"""A model's eyes: pictures become patches, and their places in a prompt become placeholders.

A template writes text, so a picture is given to it as a short mark, which every template passes on
as it stands: one that knows tools but not pictures will do. Among the ids each mark is then made as
long as its picture has tokens. What was sampled is never touched. Which models have eyes is
`ludus.policy.eyes.families`' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

from ludus.data.content import Text
from ludus.data.messages import Message, Part
from ludus.errors import RequestRefused
from ludus.policy.eyes.pictures import Picture, opened, shown

REMEMBERED = 64
"""Pictures that are kept as patches: the members of a group begin with the same one."""


class Eyes:
    """What a model needs to see.

    Args:
        processor: transformers' image processor of the model.
        mark: what stands for a picture in a text.
        token: the id in the mark that is repeated for each part of the picture.
        never: ids that stand for something seen, so that the model must not say them.
    """

    def __init__(
        self, processor: Any, *, mark: str, token: int, never: frozenset[int] = frozenset()
    ) -> None:
        self.processor = processor
        self.mark = mark
        self.token = token
        self.never = never | {token}
        self._looked = lru_cache(REMEMBERED)(self._look)

    def look(self, messages: Sequence[Message]) -> tuple[Picture, ...]:
        """All pictures in them, in their order. It may be called by any thread."""
        return self.look_at(shown(messages))

    def look_at(self, urls: Iterable[str]) -> tuple[Picture, ...]:
        """The pictures in these data URLs, in their order."""
        return tuple(map(self._looked, urls))

    def size(self, url: str) -> int:
        """How many tokens a picture has, without computing its patches."""
        image = opened(url)
        try:
            patches = self.processor.get_number_of_image_patches(image.height, image.width, {})
        except Exception as error:
            raise _unseen(image, error) from None
        return int(patches // self.processor.merge_size**2)

    def words(self, message: Message) -> Message:
        """The message as text, with a mark in the place of each picture."""
        if isinstance(message.content, str):
            return message
        return message.model_copy(update={"content": self.write(message.content)})

    def expanded(self, ids: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
        """Ids in which each mark has as many placeholders as its picture has tokens."""
        if sum(each == self.token for each in ids) != len(pictures):
            raise RequestRefused(
                f"The environment writes {self.mark} in its words, which this model takes for a "
                "picture. Have the environment leave it out."
            )
        waiting = iter(pictures)
        made: list[int] = []
        for each in ids:
            made += [each] * (next(waiting).tokens if each == self.token else 1)
        return made

    def save(self, folder: Path | str) -> None:
        """Beside a model's weights, which could not be used without it."""
        self.processor.save_pretrained(str(folder))

    def write(self, parts: Sequence[Part]) -> str:
        """Parts as text: words follow each other line by line, with a mark for each picture."""
        runs = groupby(parts, key=lambda part: isinstance(part, Text))
        return "".join(
            "\n".join(part.text for part in run if isinstance(part, Text))
            if words
            else self.mark * len(list(run))
            for words, run in runs
        )

    def _look(self, url: str) -> Picture:
        image = opened(url)
        try:
            made = self.processor(images=[image], return_tensors="pt")
        except Exception as error:
            raise _unseen(image, error) from None
        time, height, width = made["image_grid_thw"][0].tolist()
        tokens = prod((time, height, width)) // self.processor.merge_size**2
        return Picture(made["pixel_values"], (time, height, width), tokens)

    def __getstate__(self) -> dict[str, Any]:
        """For processes that are started afresh: the pictures that it remembers stay here."""
        return {name: value for name, value in vars(self).items() if name != "_looked"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._looked = lru_cache(REMEMBERED)(self._look)


def _unseen(image: Any, error: Exception) -> RequestRefused:
    return RequestRefused(
        f"The environment shows a picture of {image.width}x{image.height} that this model cannot "
        f"look at: {error}"
    )
