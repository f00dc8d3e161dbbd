"""Records conversations as episodes of a run folder, with token ids and log-probabilities.

A session is one conversation. A header names the session of a call. Without it, a call belongs to
the session whose messages it continues, or starts a new one.

Open sessions are files beside the journal, rewritten with each reply: if the process is killed,
the next one writes them to the journal.
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
    Tokens,
    Usage,
    format_episode_id,
    task_group_id,
)
from ludus.data.files import stable_hash
from ludus.data.journal import Journal
from ludus.data.messages import ImagePart, Message, messages_before_reply
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.errors import RunError
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.runtime import PolicyRuntime
from ludus.policy.sampled_conversation import SampledConversation
from ludus.rollout.stats import summarize_run
from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.requests import RewardBody

RUN_KIND = "record"
OPEN_SESSIONS_FOLDER = "open_sessions"
_MAX_NAME_CHARS = 256
_MAX_SWEEP_INTERVAL_S = 5.0
ENVIRONMENT = "api"
"""The name of the environment in recorded episodes."""


class RecordedSession:
    """One conversation, and what its episode needs."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.lock = asyncio.Lock()
        """Held by a call: the next one continues after its reply."""
        self.last_used = time.monotonic()
        self.history_key: int | None = None
        """The key of all messages so far, by which the recorder finds the session."""
        self._conversation: SampledConversation | None = None
        self._conversation_key: tuple[PolicyRuntime, list[JsonObject]] | None = None
        """The runtime and the tools of the conversation."""
        self._messages: tuple[Message, ...] = ()
        self._tools: tuple[JsonObject, ...] = ()
        self._tokens: Tokens | None = None
        """As of the last reply: a later call that is refused changes the conversation."""
        self._usage = Usage()
        self._truncated = False
        self._sampling: SamplingParams | None = None
        self.started_at = self._ended_at = datetime.now(UTC)

    @property
    def has_reply(self) -> bool:
        return bool(self._messages)

    def conversation_for(
        self, runtime: PolicyRuntime, tools: list[JsonObject]
    ) -> SampledConversation:
        """The conversation's tokens; new ones if its tools or template arguments have changed."""
        if self._conversation is None or self._conversation_key != (runtime, tools):
            self._conversation_key = runtime, tools
            self._conversation = new_conversation(runtime, tools)
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
        if self._conversation is not None and self._conversation_key is not None:
            self._tokens = self._conversation.tokens
            self._tools = tuple(self._conversation_key[1])
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
        if self._truncated:
            stop_reason = StopReason.MAX_TOKENS
        elif is_scored:
            stop_reason = StopReason.DONE
        else:
            # Without a reward, the client has just made no further call.
            has_call = bool(self._messages[-1].tool_calls)
            stop_reason = StopReason.MAX_TURNS if has_call else StopReason.NO_TOOL_CALL
        return Episode(
            episode_id=episode_id,
            stop_reason=stop_reason,
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
            timing=Timing(started_at=self.started_at, ended_at=self._ended_at),
            tokens=self._tokens,
        )


def new_conversation(runtime: PolicyRuntime, tools: Sequence[JsonObject]) -> SampledConversation:
    """The tokens of a conversation that begins."""
    # If no tools are offered, what looks like a call is text.
    return SampledConversation(runtime, tools, source="The request", parse_calls=bool(tools))


def history_key(messages: Sequence[Message], tools: Sequence[JsonObject]) -> int:
    """Hash a conversation without its reasoning and call ids, which clients may leave out."""
    parts = [
        [
            message.role,
            message.text.strip(),
            [part.image_url.url for part in message.content if isinstance(part, ImagePart)],
            [
                [call.function.name, parse_arguments(call.function.arguments)]
                for call in message.tool_calls or ()
            ],
        ]
        for message in messages
    ]
    return stable_hash(json.dumps([parts, list(tools)], sort_keys=True))


class Recorder:
    """The open sessions of a server, and the journal of ended ones."""

    def __init__(self, path: Path, agent: JsonObject, *, session_timeout: float) -> None:
        try:
            self.run = RunFolder.resume_or_create(
                path, {"environment": ENVIRONMENT, "agent": agent}, kind=RUN_KIND
            )
            self._journal = Journal.open(self.run.episodes_path)
        except RunError as error:
            # A run folder here is an argument of another name, and is always resumed.
            text = str(error).replace(
                "Use `resume=False` to start a new run beside it, or use", "Use"
            )
            raise RunError(text.replace("another `out`", "another folder as `record`")) from error
        self._agent, self._session_timeout = agent, session_timeout
        with self.run.episodes_path.open("rb") as file:
            self._num_episodes = sum(1 for _ in file)
        self.num_recorded = 0
        """Episodes that were written since it was opened."""
        self._sessions: dict[str, RecordedSession] = {}
        self._open_path = path / OPEN_SESSIONS_FOLDER
        # Write the sessions that were open when an earlier process was killed.
        try:
            self._open_path.mkdir(exist_ok=True)
            for session_file in sorted(self._open_path.glob("*.json")):
                episode = Episode.from_line(session_file.read_bytes())
                self._append(episode.model_copy(update={"episode_id": self._next_id()}))
                session_file.unlink()
        except (OSError, ValueError) as error:
            self._journal.close()
            raise RunError(
                f"The sessions in {self._open_path} cannot be read: {error}. Move the folder away "
                "to continue without them."
            ) from error

    @asynccontextmanager
    async def use_session(
        self, session_id: str | None, messages: Sequence[Message], tools: Sequence[JsonObject]
    ) -> AsyncIterator[RecordedSession]:
        """The session of a call, which waits for an earlier call of the same session."""
        if session_id is not None:
            is_ascii = session_id.isascii() and session_id.isprintable() and " " not in session_id
            fits = 1 <= len(session_id) <= _MAX_NAME_CHARS
            # It is written in the path of a reward. Clients resolve the two names in a path, also
            # when they are percent-encoded.
            if not is_ascii or not fits or session_id in (".", ".."):
                raise ApiError(
                    f"A session's name must be 1 to {_MAX_NAME_CHARS} printable ASCII characters "
                    f"without spaces, and not `.` or `..`, got {session_id[:100]!r}.",
                    param="Ludus-Session",
                )
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
            if not session.has_reply:
                del self._sessions[session.id]
            elif self._sessions.get(session.id) is session:
                path = self._path_of(session)
                draft = path.with_suffix(".draft")
                # Without waiting for the disk; a reward or the server's end reports the error.
                with suppress(OSError):
                    draft.write_bytes(session.to_episode("open", self._agent, None).to_line())
                    draft.replace(path)

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
        with suppress(OSError):
            self._open_path.rmdir()
        self.run.write_summary(summarize_run(self.run))

    def _path_of(self, session: RecordedSession) -> Path:
        started_at = session.started_at.strftime("%Y%m%dT%H%M%S.%f")
        return self._open_path / f"{started_at}-{stable_hash(session.id):016x}.json"

    def _find(
        self, session_id: str | None, messages: Sequence[Message], tools: Sequence[JsonObject]
    ) -> RecordedSession:
        if session_id is None:
            roles = [message.role for message in messages]
            if "assistant" in roles:
                end = len(roles) - roles[::-1].index("assistant")
                key = history_key(messages[:end], tools)
                for session in self._sessions.values():
                    # A session that is in use has a call that continues these messages already.
                    if session.history_key == key and not session.lock.locked():
                        return session
            session_id = secrets.token_hex(8)
        if session_id not in self._sessions:
            self._sessions[session_id] = RecordedSession(session_id)
        return self._sessions[session_id]

    def _write(self, session: RecordedSession, reward: RewardBody | None) -> str | None:
        """Write the session's episode, if it has a reply, and close the session."""
        if session.id not in self._sessions or not session.has_reply:
            self._sessions.pop(session.id, None)
            return None
        episode = session.to_episode(self._next_id(), self._agent, reward)
        self._append(episode)
        # Only now: a session that could not be written stays open.
        del self._sessions[session.id]
        with suppress(OSError):
            self._path_of(session).unlink(missing_ok=True)
        return episode.episode_id

    def _next_id(self) -> str:
        return format_episode_id(self.run.metadata.digest, self._num_episodes)

    def _append(self, episode: Episode) -> None:
        self._journal.append(episode.to_line())
        self._num_episodes += 1
        self.num_recorded += 1
