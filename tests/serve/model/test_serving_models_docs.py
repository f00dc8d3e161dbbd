"""The Python of docs/serving-models.md runs as printed, against a server with another port."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ludus.data.episode import Episode
from serve.model.model_serving import serving_model

PAGE = Path(__file__).parents[3] / "docs" / "serving-models.md"
STREAM, RESPONSES, RECORD = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
PORTS = re.compile(r"http://localhost:800\d")


def test_a_reply_is_streamed(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_model(served_name="smollm2") as served:
        exec(PORTS.sub(served.url, STREAM), {})
    assert capsys.readouterr().out.strip()


def test_a_tool_is_called_with_the_responses_api(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_model(served_name="smollm2") as served:
        exec(PORTS.sub(served.url, RESPONSES), {})
        assert served.metric('ludus_model_requests_total{path="/v1/responses",status="200"}') == 2
    assert capsys.readouterr().out


def test_a_session_is_scored(tmp_path: Path) -> None:
    with serving_model(served_name="smollm2", record=tmp_path) as served:
        exec(PORTS.sub(served.url, RECORD), {})
        (line,) = (tmp_path / "episodes.jsonl").read_bytes().splitlines()
    episode = Episode.from_line(line)
    assert episode.agent["session"] == "task-17-attempt-3"
    assert episode.rewards == {"correct": episode.reward}
