"""Summaries of episode files with sample transcripts, in one pass over the file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import zip_longest
from pathlib import Path

from pydantic import ValidationError

from ludus.data.episode import SOLVED_PART, Episode, StopReason
from ludus.data.episode_reader import ResumeIndex, ResumeTotals, parse_head
from ludus.data.interval_estimates import format_mean
from ludus.data.json_files import numbered_lines
from ludus.data.messages import message_text
from ludus.data.tool_schema import JsonObject
from ludus.reporting.document import FindingKind, Transcript, Turn

MAX_TEXT_CHARS = 4_000
"""Longer texts of a transcript are cut: a report is to be read."""
MAX_IMAGE_CHARS = 1_500_000
"""Larger images are left out, so that the report can be sent."""
_IMAGE_URL = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """Counts of all episodes of a file, and some of them."""

    rewards: list[float]
    totals: ResumeTotals
    transcripts: list[Transcript]
    """The best beside the worst, and one that broke."""

    def format_mean_reward(self) -> str:
        estimate = self.totals.rewards.estimate()
        return "unscored" if estimate is None else format_mean(estimate.value, estimate.interval)


def summarize_episodes(path: Path, num_samples: int) -> EpisodeSummary:
    """Count the episodes of a file, and read `num_samples` of the best and of the worst."""
    index, rewards, broken = ResumeIndex(), list[float](), list[bytes]()
    # Of equal rewards the first lines are kept.
    best, worst = list[tuple[float, int, bytes]](), list[tuple[float, int, bytes]]()
    for number, line in numbered_lines(path):
        if (head := parse_head(line, path, number)) is None:
            continue
        (reward,) = index.count([head])
        if StopReason(head.stop_reason).is_fault:
            broken = broken or [line][:num_samples]
        elif reward is not None:
            rewards.append(reward)
            best = nlargest(num_samples, [*best, (reward, -number, line)])
            worst = nlargest(num_samples, [*worst, (-reward, -number, line)])
    if not rewards or min(rewards) == max(rewards):
        samples = [_read_transcript(line, "Sample", "note") for *_, line in best[:1]]
    else:
        mean = sum(rewards) / len(rewards)
        good = [_read_transcript(line, "Best", "good") for reward, _, line in best if reward > mean]
        bad = [_read_transcript(line, "Worst", "problem") for low, _, line in worst if -low < mean]
        samples = [each for pair in zip_longest(good, bad) for each in pair]
    samples += [_read_transcript(line, "Broken", "note") for line in broken]
    return EpisodeSummary(rewards, index.totals, [each for each in samples if each is not None])


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
    """Build the turns of a conversation in OpenAI's format; `rewards` belong to replies."""
    turns, remaining = [], iter(rewards)
    for message in messages:
        is_reply = message.get("role") == "assistant"
        calls, call_texts = message.get("tool_calls"), []
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function", call) if isinstance(call, Mapping) else {}
            arguments = function.get("arguments", "")
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            call_texts.append(_cut(f"{function.get('name', '?')}({arguments})"))
        turns.append(
            Turn(
                role=str(message.get("role")),
                text=_cut(message_text(message)),
                reasoning=_cut(str(message.get("reasoning_content") or "")),
                calls=call_texts,
                images=_images(message.get("content")),
                reward=next(remaining, None) if is_reply else None,
            )
        )
    return turns


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
