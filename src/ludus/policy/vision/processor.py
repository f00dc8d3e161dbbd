"""A model's eyes: pictures become patches, and their places in a prompt become placeholders.

A template writes text, so a picture is given to it as a short mark, which every template passes on
as it stands: one that knows tools but not pictures will do. Among the ids each mark is then made as
long as its picture has tokens. What was sampled is never touched. Which models have eyes is
`ludus.policy.vision.model_families`' business.
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
from ludus.policy.vision.images import ProcessedImage, message_image_urls, open_data_url

IMAGE_CACHE_SIZE = 64
"""Pictures that are kept as patches: the members of a group begin with the same one."""


class VisionProcessor:
    """What a model needs to see.

    Args:
        processor: transformers' image processor of the model.
        mark: what stands for a picture in a text.
        token: the id in the mark that is repeated for each part of the picture.
        never: ids that stand for something seen, so that the model must not say them.
    """

    def __init__(
        self,
        image_processor: Any,
        *,
        placeholder: str,
        image_token_id: int,
        suppressed_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.image_processor = image_processor
        self.placeholder = placeholder
        self.image_token_id = image_token_id
        self.suppressed_ids = suppressed_ids | {image_token_id}
        self._process_url_cached = lru_cache(IMAGE_CACHE_SIZE)(self._process_url)

    def process_messages(self, messages: Sequence[Message]) -> tuple[ProcessedImage, ...]:
        """All pictures in them, in their order. It may be called by any thread."""
        return self.process_urls(message_image_urls(messages))

    def process_urls(self, urls: Iterable[str]) -> tuple[ProcessedImage, ...]:
        """The pictures in these data URLs, in their order."""
        return tuple(map(self._process_url_cached, urls))

    def num_image_tokens(self, url: str) -> int:
        """How many tokens a picture has, without computing its patches."""
        image = open_data_url(url)
        try:
            patches = self.image_processor.get_number_of_image_patches(
                image.height, image.width, {}
            )
        except Exception as error:
            raise _processing_error(image, error) from None
        return int(patches // self.image_processor.merge_size**2)

    def message_to_text(self, message: Message) -> Message:
        """The message as text, with a mark in the place of each picture."""
        if isinstance(message.content, str):
            return message
        return message.model_copy(update={"content": self.parts_to_text(message.content)})

    def expand_placeholders(
        self, ids: Sequence[int], images: Sequence[ProcessedImage]
    ) -> list[int]:
        """Ids in which each mark has as many placeholders as its picture has tokens."""
        if sum(each == self.image_token_id for each in ids) != len(images):
            raise RequestRefused(
                f"The environment writes {self.placeholder} in its words, which this model takes for a "
                "picture. Have the environment leave it out."
            )
        waiting = iter(images)
        made: list[int] = []
        for each in ids:
            made += [each] * (next(waiting).num_tokens if each == self.image_token_id else 1)
        return made

    def save(self, folder: Path | str) -> None:
        """Beside a model's weights, which could not be used without it."""
        self.image_processor.save_pretrained(str(folder))

    def parts_to_text(self, parts: Sequence[Part]) -> str:
        """Parts as text: words follow each other line by line, with a mark for each picture."""
        runs = groupby(parts, key=lambda part: isinstance(part, Text))
        return "".join(
            "\n".join(part.text for part in run if isinstance(part, Text))
            if words
            else self.placeholder * len(list(run))
            for words, run in runs
        )

    def _process_url(self, url: str) -> ProcessedImage:
        image = open_data_url(url)
        try:
            made = self.image_processor(images=[image], return_tensors="pt")
        except Exception as error:
            raise _processing_error(image, error) from None
        time, height, width = made["image_grid_thw"][0].tolist()
        tokens = prod((time, height, width)) // self.image_processor.merge_size**2
        return ProcessedImage(made["pixel_values"], (time, height, width), tokens)

    def __getstate__(self) -> dict[str, Any]:
        """For processes that are started afresh: the pictures that it remembers stay here."""
        return {name: value for name, value in vars(self).items() if name != "_looked"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._process_url_cached = lru_cache(IMAGE_CACHE_SIZE)(self._process_url)


def _processing_error(image: Any, error: Exception) -> RequestRefused:
    return RequestRefused(
        f"The environment shows a picture of {image.width}x{image.height} that this model cannot "
        f"look at: {error}"
    )
