"""Property test: whatever the files and the options, every line is counted exactly once."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from curation.attempts import GUESS, attempt, call, model, read_rows, system, tool_result, user
from ludus.curation import CurateConfig, CurateReport, curate
from ludus.curation.config import OutputKind
from ludus.data.episode import Episode, StopReason
from ludus.data.messages import Message
from ludus.errors import ConfigError, LudusError, RunError

_BLANK = [b"", b"  ", b"\t\r", b"\x0b\x0c"]
_WORDS = st.sampled_from(["", "yes", "no", "It is 42.", "Käse 🧀 “ok”", "a\nb\x00c", "yes yes no"])
_ARGUMENTS = st.sampled_from(['{"word": "crane"}', "{}", '{"a": 1,}', '{"word"', "[]", '{"x":NaN}'])
_CALLS = st.builds(call, st.sampled_from(["guess", "look"]), _ARGUMENTS)
_REPLIES = st.builds(
    lambda text, calls, reasoning: model(text, *calls, reasoning=reasoning),
    _WORDS,
    st.lists(_CALLS, max_size=2),
    st.none() | _WORDS,
)
_LATER = _REPLIES | st.builds(tool_result, _WORDS, st.sampled_from(["call_0", "call_1"]))
_PROMPTS = st.sampled_from(["What is it?", "What is that, in one word?", "Guess!"]).map(user)
_REWARDS = st.none() | st.sampled_from([0.0, 1.0, -1.0, 0.5, 0.6, 1e308, -1e308, 1e-300])
_TO: list[OutputKind] = ["sft", "dpo", "episodes", "openenv", "nemo-gym"]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    opening = draw(st.sampled_from([(), (system("Be brief."),), (tool_result("hm", "x"),)]))
    if draw(st.integers(0, 9)) == 0:
        return opening
    return (*opening, draw(_PROMPTS), *draw(st.lists(_LATER, max_size=4)))


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    task, messages = draw(st.sampled_from(["a1", "a2", "a3", "b1", "b2"])), draw(conversations())
    malformed = draw(st.integers(0, 1))  # Not every importer counts them.
    return attempt(
        "?",
        draw(_REWARDS),
        task=task,
        messages=messages,
        environment=task[0],
        stop_reason=draw(st.sampled_from([StopReason.DONE, StopReason.DONE, *StopReason])),
        malformed_calls=malformed,
        tools=draw(st.sampled_from([(), (GUESS,)])),
    )


def _odd(episode: Episode, how: int) -> bytes:
    """Lines that look like an episode to DuckDB or to pydantic."""
    line = episode.to_line().strip()
    return [
        line[: len(line) // 2],
        line[:-1] + b",}",
        line[:-1] + b',"more":1}',
        line.replace(b'"messages":[', b'"messages":[7,'),
        line.replace(b'"version":1', b'"version":2'),
        line.replace(b'"stop_reason":"', b'"stop_reason":"un'),
        b"\x0b" + line + b"\x0c",
        b" " + line + b"\r",
        line + line,
        b"nope",
        b"[]",
        b"\x00\x00",
        b'{"messages":"\xff"}',
    ][how]


_ODD = st.builds(_odd, episodes(), st.integers(0, 12))


@st.composite
def files(draw: st.DrawFn) -> list[bytes]:
    """Contents of one to three files, with episode ids by position."""
    made, number = [], 0
    for _ in range(draw(st.integers(1, 3))):
        lines = []
        for each in draw(st.lists(episodes() | episodes() | _ODD | st.sampled_from(_BLANK))):
            line = each.to_line().strip() if isinstance(each, Episode) else each
            lines.append(line.replace(b'"episode_id":"?"', b'"episode_id":"e%d"' % number))
            number += 1
        made.append(b"\n".join(lines) + draw(st.sampled_from([b"", b"\n"])))
    return made


@st.composite
def configs(draw: st.DrawFn) -> CurateConfig:
    to = draw(st.sampled_from(_TO))
    wanted: dict[str, Any] = {
        "where": st.sampled_from(
            ["reward > 0", "len(messages) > 2", "environment = 'a'", "seed IS NULL"]
        ),
        "min_reward": st.sampled_from([0.0, 0.5, -2.0]),
        "solve_rate": st.sampled_from([(0.0, 1.0), (0.1, 0.9), (0.5, 0.5)]),
        "top_fraction": st.sampled_from([0.1, 0.5, 1.0]),
    }
    chosen = {name: draw(some) for name, some in wanted.items() if draw(st.integers(0, 3)) == 0}
    pair = to == "dpo"
    return CurateConfig(
        to=to,
        **chosen,
        keep_unscored=draw(st.booleans()) and not pair,
        best_of_group=not pair and draw(st.integers(0, 3)) == 0,
        dedupe=pair or draw(st.booleans()),
        pairs=draw(st.sampled_from(["best", "all"])),
        min_margin=draw(st.sampled_from([0.0, 0.1, 1.0])),
        test_size=draw(st.none() | st.sampled_from([0.1, 0.5])),
    )


@dataclass(frozen=True)
class RunFiles:
    """Run files."""

    runs: list[Path]

    @property
    def lines(self) -> dict[tuple[str, int], bytes]:
        """All lines that are not blank, by file and line number."""
        return {
            (str(run), number): line
            for run in self.runs
            for number, line in enumerate(run.read_bytes().split(b"\n"), 1)
            if line.strip()
        }


def _write_files(folder: Path, contents: list[bytes]) -> RunFiles:
    runs = [folder / f"it's {at} [*].jsonl" for at in range(len(contents))]
    for run, content in zip(runs, contents, strict=True):
        run.write_bytes(content)
    return RunFiles(runs)


def _ids(row: dict[str, Any]) -> list[str]:
    if "chosen_id" in row:
        return [row["chosen_id"], row["rejected_id"]]
    return [row["episode_id"] if "episode_id" in row else row["response"]["id"]]


def _check(files_on_disk: RunFiles, out: Path, report: CurateReport) -> None:
    lines, left_out = files_on_disk.lines, read_rows(out / "left_out.jsonl")
    assert report.episodes == len(lines) == report.kept + sum(report.left_out.values())
    _check_steps(report)
    assert Counter(line["reason"] for line in left_out) == report.left_out
    gone = [(line["file"], line["line"]) for line in left_out]
    assert len(set(gone)) == len(gone) and set(gone) <= set(lines)
    names = {place: re.search(rb'"episode_id":"(e\d+)"', line) for place, line in lines.items()}
    staying = {match[1].decode() for at, match in names.items() if match and at not in set(gone)}
    splits = [read_rows(out / "train.jsonl"), read_rows(out / "test.jsonl")]
    row_ids = [name for split in splits for row in split for name in _ids(row)]
    assert set(row_ids) == staying and len(staying) == report.kept
    assert sum(report.rows.values()) == len(splits[0]) + len(splits[1])
    tasks = [{row["group_id"] for row in split if "group_id" in row} for split in splits]
    assert not tasks[0] & tasks[1]


def _check_steps(report: CurateReport) -> None:
    assert sum(step.removed for step in report.steps) == report.episodes - report.kept
    left = [report.episodes, *(step.remaining for step in report.steps)]
    assert [a - b for a, b in pairwise(left)] == [step.removed for step in report.steps]
    counted = Counter[str]()
    for step in report.steps:
        counted[step.reason] += step.removed
    assert +counted == report.left_out


def _check_error(files_on_disk: RunFiles, out: Path, error: LudusError) -> None:
    assert not out.exists() and "\n" not in str(error)
    match = re.match(r"None of ([\d,]+) episodes is left: (.+?)\. [A-Z`]", str(error))
    if match:
        counts = [int(part.rpartition(" ")[2]) for part in match[2].split(", ")]
        assert int(match[1]) == sum(counts) == len(files_on_disk.lines)
    elif isinstance(error, RunError):
        assert not files_on_disk.lines and "no episodes" in str(error)
    else:
        assert isinstance(error, ConfigError) and "`test_size`" in str(error)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(files(), configs())
def test_every_line_is_in_the_rows_or_excluded_for_one_reason(
    contents: list[bytes], config: CurateConfig
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files_on_disk = _write_files(folder, contents)
        out, again = folder / "out", folder / "again"
        try:
            report = curate(files_on_disk.runs, out, config, explain=True)
        except LudusError as error:
            _check_error(files_on_disk, out, error)
            return
        _check(files_on_disk, out, report)
        assert json.loads((out / "curation.json").read_text())["report"] == json.loads(
            json.dumps(report.as_json())
        )
        curate(files_on_disk.runs, again, config, explain=True)
        assert _bytes(out) == _bytes(again)


def _bytes(folder: Path) -> dict[str, bytes]:
    """The files of a data set, without its own path, which is in the card."""
    path = str(folder).encode()
    return {file.name: file.read_bytes().replace(path, b"") for file in folder.iterdir()}
