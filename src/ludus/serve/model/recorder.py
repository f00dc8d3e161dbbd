"""Records conversations as episodes of a run folder, with token ids and log-probabilities.

A session is one conversation. A header names the session of a call; without it, a call that
continues the messages of a session belongs to that session, and any other call starts one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from ludus.data.episode import (
    Episode,
    StopReason,
    Timing,
    Usage,
    format_episode_id,
    task_group_id,
)
from ludus.data.journal import Journal
from ludus.data.messages import Message, messages_before_reply
from ludus.data.run_folder import RunFolder
from ludus.data.stable_hash import stable_hash
from ludus.data.tool_arguments import parse_arguments
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.runtime import PolicyRuntime
from ludus.policy.sampled_conversation import SampledConversation
from ludus.rollout.summary import summarize_run
from ludus.serve.model.request_schema import RewardBody

RUN_KIND = "record"
ENVIRONMENT = "api"
"""The name of the environment in recorded episodes."""
_MAX_SWEEP_INTERVAL_S = 5.0


class Session:
    """One conversation, and what its episode needs."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.lock = asyncio.Lock()
        """Held by a call: the next one continues after its reply."""
        self.last_used = time.monotonic()
        self.history_key: int | None = None
        """Of all messages so far."""
        self.indexed_key: int | None = None
        """The history key under which the recorder finds it."""
        self._conversation: SampledConversation | None = None
        self._setup: tuple[PolicyRuntime, list[JsonObject]] | None = None
        self._messages: tuple[Message, ...] = ()
        self._tools: tuple[JsonObject, ...] = ()
        self._usage = Usage()
        self._truncated = False
        self._sampling: SamplingParams | None = None
        self._started_at = self._ended_at = datetime.now(UTC)

    @property
    def has_reply(self) -> bool:
        return bool(self._messages)

    def conversation_for(
        self, runtime: PolicyRuntime, tools: list[JsonObject]
    ) -> SampledConversation:
        """The conversation's tokens; new ones if its tools or template arguments have changed."""
        if self._conversation is None or self._setup != (runtime, tools):
            self._setup = runtime, tools
            self._conversation = SampledConversation(
                runtime, tools, source="The request", parse_calls=bool(tools)
            )
        return self._conversation

    def add_reply(
        self,
        messages: tuple[Message, ...],
        reply: Message,
        *,
        usage: tuple[int, int],
        truncated: bool,
        sampling: SamplingParams,
    ) -> None:
        """Keep a reply to these messages; `usage` has its prompt and completion tokens."""
        self._messages = (*messages, reply)
        self._tools = tuple(self._setup[1]) if self._setup is not None else ()
        self._usage += Usage(prompt_tokens=usage[0], completion_tokens=usage[1])
        self._truncated, self._sampling = truncated, sampling
        self._ended_at = datetime.now(UTC)
        self.history_key = history_key(self._messages, self._tools)

    def to_episode(self, episode_id: str, agent: JsonObject, reward: RewardBody | None) -> Episode:
        calls = [call for message in self._messages for call in message.tool_calls or ()]
        is_scored = reward is not None and reward.reward is not None
        prompt = messages_before_reply(self._messages)
        task = {"task": [message.model_dump(mode="json") for message in prompt]}
        sampling = {} if self._sampling is None else asdict(self._sampling)
        return Episode(
            episode_id=episode_id,
            stop_reason=self._stop_reason(is_scored=is_scored),
            reward=None if reward is None else reward.reward,
            usage=self._usage,
            environment=ENVIRONMENT,
            group_id=task_group_id(ENVIRONMENT, task),
            agent={
                **agent,
                **{name: value for name, value in sampling.items() if value is not None},
                "session": self.id,
            },
            messages=self._messages,
            tools=self._tools,
            rewards={} if reward is None else reward.rewards,
            done=is_scored and not self._truncated,
            turns=sum(message.role == "assistant" for message in self._messages),
            tool_calls=len(calls),
            malformed_calls=sum(parse_arguments(call.function.arguments) is None for call in calls),
            timing=Timing(started_at=self._started_at, ended_at=self._ended_at),
            tokens=None if self._conversation is None else self._conversation.tokens,
        )

    def _stop_reason(self, *, is_scored: bool) -> StopReason:
        if self._truncated:
            return StopReason.MAX_TOKENS
        if is_scored:
            return StopReason.DONE
        # Without a reward, the client has just made no further call.
        has_call = bool(self._messages[-1].tool_calls)
        return StopReason.MAX_TURNS if has_call else StopReason.NO_TOOL_CALL


class Recorder:
    """The open sessions of a server, and the journal that they are written to when they end."""

    def __init__(self, path: Path, agent: JsonObject, *, session_timeout: float) -> None:
        self.run = RunFolder.resume_or_create(
            path, {"environment": ENVIRONMENT, "agent": agent}, kind=RUN_KIND
        )
        self._agent, self._session_timeout = agent, session_timeout
        self._journal = Journal.open(self.run.episodes_path)
        self._num_episodes = _count_lines(self.run.episodes_path)
        self.num_recorded = 0
        """Episodes that were written since it was opened."""
        self._sessions: dict[str, Session] = {}
        self._by_history: dict[int, list[Session]] = {}

    @asynccontextmanager
    async def use_session(
        self, session_id: str | None, messages: Sequence[Message], tools: Sequence[JsonObject]
    ) -> AsyncIterator[Session]:
        """The session of a call, which waits for an earlier call of the same session."""
        session = self._find(session_id, messages, tools)
        await session.lock.acquire()
        while self._sessions.get(session.id) is not session:
            # A reward has ended the session while this call waited: it begins the next one.
            session.lock.release()
            session = self._find(session_id, messages, tools)
            await session.lock.acquire()
        try:
            yield session
        finally:
            session.lock.release()
            session.last_used = time.monotonic()
            if session.has_reply:
                self._index_history(session)
            else:
                del self._sessions[session.id]

    async def end(self, session_id: str, reward: RewardBody) -> str | None:
        """Write a session's episode with its reward; returns its id, or None without a session."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        async with session.lock:
            return self._write(session, reward)

    async def sweep_forever(self) -> None:
        """Write the sessions that have not been used for the timeout."""
        while True:
            await asyncio.sleep(min(self._session_timeout / 2, _MAX_SWEEP_INTERVAL_S))
            oldest = time.monotonic() - self._session_timeout
            for session in list(self._sessions.values()):
                if session.last_used < oldest and not session.lock.locked():
                    # Tried again later; a reward or the end of the server reports the error.
                    with suppress(RunError):
                        self._write(session, None)

    def close(self) -> None:
        """Write all open sessions, and the summary of the run."""
        with self._journal:
            for session in list(self._sessions.values()):
                self._write(session, None)
        self.run.write_summary(summarize_run(self.run))

    def _find(
        self, session_id: str | None, messages: Sequence[Message], tools: Sequence[JsonObject]
    ) -> Session:
        if session_id is None:
            roles = [message.role for message in messages]
            if "assistant" in roles:
                end = len(roles) - roles[::-1].index("assistant")
                known = self._by_history.get(history_key(messages[:end], tools), [])
                # A session that is in use has a call that continues these messages already.
                free = next((each for each in known if not each.lock.locked()), None)
                if free is not None:
                    return free
            session_id = secrets.token_hex(8)
        if session_id not in self._sessions:
            self._sessions[session_id] = Session(session_id)
        return self._sessions[session_id]

    def _index_history(self, session: Session) -> None:
        """Find the session by its newest messages, and no longer by its earlier ones."""
        self._forget_history(session)
        if session.history_key is not None and session.id in self._sessions:
            self._by_history.setdefault(session.history_key, []).append(session)
            session.indexed_key = session.history_key

    def _forget_history(self, session: Session) -> None:
        key, session.indexed_key = session.indexed_key, None
        if key is not None:
            self._by_history[key].remove(session)
            if not self._by_history[key]:
                del self._by_history[key]

    def _write(self, session: Session, reward: RewardBody | None) -> str | None:
        """Write the session's episode, if it has a reply, and close the session."""
        if session.id not in self._sessions or not session.has_reply:
            self._sessions.pop(session.id, None)
            return None
        episode_id = format_episode_id(self.run.metadata.digest, self._num_episodes)
        episode = session.to_episode(episode_id, self._agent, reward)
        self._journal.append(episode.to_line())
        self._num_episodes += 1
        self.num_recorded += 1
        # Only now: a session that could not be written stays open.
        del self._sessions[session.id]
        self._forget_history(session)
        return episode_id


def history_key(messages: Sequence[Message], tools: Sequence[JsonObject]) -> int:
    """Equal for the same conversation, also if a client has left out reasoning or call ids."""
    parts = [
        [
            message.role,
            message.text.strip(),
            [
                [call.function.name, parse_arguments(call.function.arguments)]
                for call in message.tool_calls or ()
            ],
        ]
        for message in messages
    ]
    return stable_hash(json.dumps([parts, list(tools)], sort_keys=True))


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
