"""Records conversations as episodes of a run folder, with token ids and log-probabilities.

A session is one conversation. A header names the session of a call; without it, a call that
continues the messages of a session belongs to that session, and any other call starts one.

Open sessions are files beside the journal, rewritten with each reply: where the process is killed,
the next one writes them to the journal.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from ludus.data.episode import Episode, format_episode_id
from ludus.data.files import stable_hash
from ludus.data.journal import Journal
from ludus.data.messages import Message
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError
from ludus.rollout.stats import summarize_run
from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.request_schema import RewardBody
from ludus.serve.model.session import ENVIRONMENT, Session, history_key

RUN_KIND = "record"
OPEN_SESSIONS_FOLDER = "open_sessions"
_MAX_NAME_CHARS = 256
_MAX_SWEEP_INTERVAL_S = 5.0


class Recorder:
    """The open sessions of a server, and the journal that they are written to when they end."""

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
        self._num_episodes = _count_lines(self.run.episodes_path)
        self.num_recorded = 0
        """Episodes that were written since it was opened."""
        self._sessions: dict[str, Session] = {}
        self._by_history: dict[int, list[Session]] = {}
        self._open_path = path / OPEN_SESSIONS_FOLDER
        self._write_interrupted()

    @asynccontextmanager
    async def use_session(
        self, session_id: str | None, messages: Sequence[Message], tools: Sequence[JsonObject]
    ) -> AsyncIterator[Session]:
        """The session of a call, which waits for an earlier call of the same session."""
        if session_id is not None:
            _check_name(session_id)
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
                self._save(session)
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
        with suppress(OSError):
            self._open_path.rmdir()
        self.run.write_summary(summarize_run(self.run))

    def _write_interrupted(self) -> None:
        """Write the sessions that were open when an earlier process was killed."""
        try:
            self._open_path.mkdir(exist_ok=True)
            for file in sorted(self._open_path.glob("*.json")):
                episode = Episode.from_line(file.read_bytes())
                self._append(episode.model_copy(update={"episode_id": self._next_id()}))
                file.unlink()
        except (OSError, ValueError) as error:
            self._journal.close()
            raise RunError(
                f"The sessions in {self._open_path} cannot be read: {error}. Move the folder away "
                "to continue without them."
            ) from error

    def _save(self, session: Session) -> None:
        """Write an open session to a file, without waiting for the disk."""
        if self._sessions.get(session.id) is session:
            path = self._path_of(session)
            draft = path.with_suffix(".draft")
            # A reward or the end of the server reports the error.
            with suppress(OSError):
                draft.write_bytes(session.to_episode("open", self._agent, None).to_line())
                draft.replace(path)

    def _path_of(self, session: Session) -> Path:
        started_at = session.started_at.strftime("%Y%m%dT%H%M%S.%f")
        return self._open_path / f"{started_at}-{stable_hash(session.id):016x}.json"

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
        episode = session.to_episode(self._next_id(), self._agent, reward)
        self._append(episode)
        # Only now: a session that could not be written stays open.
        del self._sessions[session.id]
        self._forget_history(session)
        with suppress(OSError):
            self._path_of(session).unlink(missing_ok=True)
        return episode.episode_id

    def _next_id(self) -> str:
        return format_episode_id(self.run.metadata.digest, self._num_episodes)

    def _append(self, episode: Episode) -> None:
        self._journal.append(episode.to_line())
        self._num_episodes += 1
        self.num_recorded += 1


def _check_name(session_id: str) -> None:
    """Raise for a name that cannot be written in the path of a reward."""
    is_ascii = session_id.isascii() and session_id.isprintable() and " " not in session_id
    # Clients resolve the two names in a path, also when they are percent-encoded.
    if not is_ascii or not 1 <= len(session_id) <= _MAX_NAME_CHARS or session_id in (".", ".."):
        raise ApiError(
            f"A session's name must be 1 to {_MAX_NAME_CHARS} printable ASCII characters without "
            f"spaces, and not `.` or `..`, got {session_id[:100]!r}.",
            param="Ludus-Session",
        )


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
