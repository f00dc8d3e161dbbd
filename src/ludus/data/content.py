"""What an observation shows: text, or a list of text and image blocks.

The blocks are MCP's, so they stand on the wire as they are.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field


class Text(BaseModel):
    """A piece of text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["text"] = "text"
    text: str


class Image(BaseModel):
    """A picture, base64 inside."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["image"] = "image"
    data: str
    mime_type: str = Field(
        default="image/png",
        validation_alias=AliasChoices("mime_type", "mimeType"),
        serialization_alias="mimeType",
    )

    @classmethod
    def from_bytes(cls, data: bytes, mime_type: str = "image/png") -> Image:
        return cls(data=base64.b64encode(data).decode("ascii"), mime_type=mime_type)

    @classmethod
    def from_path(cls, path: str | Path) -> Image:
        path = Path(path)
        kind, _ = mimetypes.guess_type(path.name)
        return cls.from_bytes(path.read_bytes(), kind or "image/png")


Block = Annotated[Text | Image, Field(discriminator="type")]
Content = str | Sequence[Text | Image]


def content_text(content: Content) -> str:
    """The words in it; a picture leaves a mark of its kind."""
    if isinstance(content, str):
        return content
    return "\n".join(
        block.text if isinstance(block, Text) else f"[{block.mime_type}]" for block in content
    )
