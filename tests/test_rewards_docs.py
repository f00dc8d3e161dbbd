"""The environment with a rubric in docs/rewards.md scores as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ludus import connect

PAGE = Path(__file__).parents[1] / "docs" / "rewards.md"
ENVIRONMENT, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("Air scatters blue light most.", 1.0),
        ("Air scatters blue light most. " * 4, 0.8),
        ("It is a mirror.", 0.2),
        ("Air scatters blue light most; rm -rf /", 0.0),
    ],
)
async def test_the_rubric_weighs_its_parts_and_gates(
    text: str, reward: float, tmp_path: Path
) -> None:
    file = tmp_path / "essay.py"
    file.write_text(ENVIRONMENT)
    async with connect(f"{file}:Essay").session() as session:
        await session.reset(seed=0)
        result = await session.call("submit", {"text": text})
    assert result.reward == pytest.approx(reward)
