"""Summaries of episode files with sample transcripts, in one pass over the file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from pydantic import ValidationError

from ludus.data.episode import SOLVED_PART, Episode, StopReason
from ludus.data.episode_reader import EpisodeHead, ResumeIndex, ResumeTotals, parse_head
from ludus.data.estimates import format_mean
from ludus.data.json_files import numbered_lines
from ludus.data.messages import message_text
from ludus.data.tool_schema import JsonObject
from ludus.reporting.document import FindingKind, Transcript, Turn

MAX_TEXT_CHARS = 4_000
"""Longer texts of a transcript are cut: a report is to be read."""
MAX_IMAGE_CHARS = 1_500_000
"""Larger images are left out, so that the report can be sent."""
_LABELS: tuple[tuple[str, FindingKind], ...] = (("Best", "good"), ("Worst", "problem"))
_IMAGE_URL = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")


@dataclass(slots=True)
class EpisodeSummary:
    """Counts of all episodes of a file, and the lines of the best and the worst."""

    num_samples: int
    rewards: list[float] = field(default_factory=list)
    """Those that count."""
    _index: ResumeIndex = field(default_factory=ResumeIndex)
    _best: list[tuple[float, bytes]] = field(default_factory=list)
    _worst: list[tuple[float, bytes]] = field(default_factory=list)
    _broken_lines: list[bytes] = field(default_factory=list)

    def add(self, head: EpisodeHead, line: bytes) -> None:
        (reward,) = self._index.count([head])
        if StopReason(head.stop_reason).is_fault:
            if len(self._broken_lines) < min(self.num_samples, 1):
                self._broken_lines.append(line)
        elif reward is not None:
            self.rewards.append(reward)
            _keep_highest(self._best, reward, line, self.num_samples)
            _keep_highest(self._worst, -reward, line, self.num_samples)

    @property
    def totals(self) -> ResumeTotals:
        return self._index.totals

    def format_mean_reward(self) -> str:
        estimate = self.totals.rewards.estimate()
        return "unscored" if estimate is None else format_mean(estimate.value, estimate.interval)

    def transcripts(self) -> list[Transcript]:
        """The best beside the worst, and one that broke."""
        if not self.rewards or min(self.rewards) == max(self.rewards):
            samples = [_read_transcript(line, "Sample", "note") for _, line in self._best[:1]]
        else:
            mean = sum(self.rewards) / len(self.rewards)
            best = [line for reward, line in self._best if reward > mean]
            worst = [line for negative, line in self._worst if -negative < mean]
            samples = [
                _read_transcript(line, *label)
                for pair in zip_longest(best, worst)
                for line, label in zip(pair, _LABELS, strict=True)
                if line is not None
            ]
        samples += [_read_transcript(line, "Broken", "note") for line in self._broken_lines]
        return [sample for sample in samples if sample is not None]


def summarize_episodes(path: Path, num_samples: int) -> EpisodeSummary:
    """Count the episodes of a file, and keep the lines of `num_samples` best and worst ones."""
    summary = EpisodeSummary(num_samples)
    for number, line in numbered_lines(path):
        if (head := parse_head(line, path, number)) is not None:
            summary.add(head, line)
    return summary


def _keep_highest(kept: list[tuple[float, bytes]], value: float, line: bytes, count: int) -> None:
    """Keep the `count` highest values, and of equal ones the first."""
    if len(kept) < count or (kept and value > kept[-1][0]):
        kept.append((value, line))
        kept.sort(key=lambda pair: -pair[0])
        del kept[count:]


def _read_transcript(line: bytes, word: str, kind: FindingKind) -> Transcript | None:
    try:
        episode = Episode.from_line(line)
    except ValidationError:
        return None
    if kind == "good" and episode.rewards.get(SOLVED_PART, episode.reward or 0.0) < 1:
        kind = "note"  # The best of many lost games.
    reward = "unscored" if episode.reward is None else f"reward {episode.reward:g}"
    turns = f"{episode.turns} turn{'s' * (episode.turns != 1)}"
    detail = f"{reward}, {episode.stop_reason.value}, {turns}"
    if episode.error is not None:
        detail += f": {episode.error.text}"
    messages = [message.model_dump(mode="json") for message in episode.messages]
    return Transcript(
        f"{word}: {episode.environment} {episode.episode_id}",
        kind,
        detail,
        build_turns(messages, episode.turn_rewards),
    )


def build_turns(messages: Sequence[JsonObject], rewards: Sequence[float] = ()) -> list[Turn]:
    """Turns of a conversation in OpenAI's format; `rewards` are those of the model's replies."""
    turns, remaining = [], iter(rewards)
    for message in messages:
        is_reply = message.get("role") == "assistant"
        calls = message.get("tool_calls")
        turns.append(
            Turn(
                role=str(message.get("role")),
                text=_cut(message_text(message)),
                reasoning=_cut(str(message.get("reasoning_content") or "")),
                calls=[_call_text(call) for call in (calls if isinstance(calls, list) else ())],
                images=_images(message.get("content")),
                reward=next(remaining, None) if is_reply else None,
            )
        )
    return turns


def _call_text(call: object) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return _cut(f"{function.get('name', '?')}({arguments})")


def _images(content: object) -> list[str]:
    urls = [
        part["image_url"].get("url")
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, Mapping) and isinstance(part.get("image_url"), Mapping)
    ]
    return [
        url
        for url in urls
        if isinstance(url, str) and len(url) <= MAX_IMAGE_CHARS and _IMAGE_URL.fullmatch(url)
    ]


def _cut(text: str) -> str:
    more = len(text) - MAX_TEXT_CHARS
    return text if more <= 0 else f"{text[:MAX_TEXT_CHARS]}\n… {more:,} more characters"
