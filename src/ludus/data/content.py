"""Content of an observation: text, or a list of text and image blocks.

The blocks have MCP's format, in which they are sent.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError


class Text(BaseModel):
    """A piece of text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["text"] = "text"
    text: str


class Image(BaseModel):
    """A base64-encoded image."""

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
        mime_type, _ = mimetypes.guess_type(path.name)
        return cls.from_bytes(path.read_bytes(), mime_type or "image/png")


Block = Annotated[Text | Image, Field(discriminator="type")]
Content = str | Sequence[Text | Image]
_blocks: TypeAdapter[list[Text | Image]] = TypeAdapter(list[Block])


def content_text(content: Content) -> str:
    """The text of the content; an image is replaced by its media type in brackets."""
    if isinstance(content, str):
        return content
    return "\n".join(
        block.text if isinstance(block, Text) else f"[{block.mime_type}]" for block in content
    )


def is_content_blocks(value: Any) -> bool:
    """Whether a value is a list of text and image blocks, with at least one."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(block, Text | Image) for block in value)
    )


def parse_blocks(content: Any) -> list[Text | Image]:
    """Parse content that is a list of text and image blocks; empty where it is something else."""
    try:
        return _blocks.validate_python(content)
    except ValidationError:
        return []
