"""Environments for the tests of TRL compatibility."""

from __future__ import annotations

import io

from PIL import Image as Pictures

from ludus import Image, Text, ToolEnvironment, tool

COLORS = {"red": (255, 0, 0), "blue": (0, 0, 255)}


class ColorImage(ToolEnvironment):
    """Shows an image of a color, which the model must name."""

    def reset(self, *, seed: int | None = None) -> list[Text | Image]:
        self.color = sorted(COLORS)[(seed or 0) % 2]
        return [Text(text="Which color?"), picture(self.color)]

    @tool
    def name(self, color: str) -> list[Text | Image]:
        """Name the color.

        Args:
            color: Its name.
        """
        self.award(float(color == self.color))
        return [Text(text="It was:"), picture(self.color)]


class Fragile(ToolEnvironment):
    """Raises on seed 13, and on a hard push."""

    def reset(self, *, seed: int | None = None) -> str:
        if seed == 13:
            raise RuntimeError("No luck.")
        return "Go."

    @tool
    def push(self, hard: bool = False) -> str:
        """Push it.

        Args:
            hard: How.
        """
        if hard:
            raise RuntimeError("It fell over.")
        return self.finish(1.0, "It moved.")


def picture(color: str) -> Image:
    data = io.BytesIO()
    Pictures.new("RGB", (4, 4), COLORS[color]).save(data, format="PNG")
    return Image.from_bytes(data.getvalue())


class IgnoresSeed(ToolEnvironment):
    """Ignores its seed."""

    begun = 0

    def reset(self, *, seed: int | None = None) -> str:
        IgnoresSeed.begun += 1
        return f"Mood {IgnoresSeed.begun}."

    @tool
    def wait(self) -> str:
        """Wait."""
        return self.finish(0.0, "Over.")
