"""The environment classes of TRL's scripts for OpenEnv: on our servers with our clients, and on
OpenEnv's with its own, they get the same observations and give the model the same responses.

Each class reads observations as the script does: from these fields, by these words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browser import needs_chromium
from world import serving

from conformance import observation_environments as theirs
from conformance.openenv_games import OpenSpielEnvironment, TextArenaEnvironment, their_client
from conformance.test_ludus_client_on_openenv_server import their_server
from ludus.envs.browsergym import BrowserGymAction, BrowserGymEnv
from ludus.envs.echo import EchoAction, EchoEnv

TEXTARENA_FIELDS = ("prompt", "messages", "current_player_id", "legal_players")
OPENSPIEL_FIELDS = (
    *("info_state", "legal_actions", "game_phase"),
    *("current_player_id", "opponent_last_action"),
)
BROWSERGYM_FIELDS = ("goal", "axtree_txt", "error", "last_action_error")
ECHO_FIELDS = ("echoed_message", "message_length")


@dataclass
class Recorded:
    """A client that keeps the results it gets: fields of the observation, reward and done."""

    client: Any
    fields: tuple[str, ...]
    results: list[tuple[dict[str, Any], float | None, bool]] = field(default_factory=list)

    def reset(self, **task: Any) -> Any:
        return self._keep(self.client.reset(**task))

    def step(self, action: Any) -> Any:
        return self._keep(self.client.step(action))

    def close(self) -> None:
        self.client.close()

    def _keep(self, result: Any) -> Any:
        fields = result.observation.model_dump(mode="json")
        kept = {name: fields[name] for name in self.fields}
        self.results.append((kept, result.reward, result.done))
        return result


@dataclass(frozen=True)
class Side:
    """What a script imports, and the server whose URL it is given."""

    server: Callable[[], AbstractContextManager[Any]]
    client: type
    action: type


def sides_of_textarena(game: str) -> tuple[Side, Side]:
    from ludus.envs.textarena import TextArenaAction, TextArenaEnv

    types = (theirs.TextArenaAction, theirs.TextArenaObservation)
    server = partial(their_server, partial(TextArenaEnvironment, game), *types)
    return (
        Side(partial(serving, f"textarena:{game}"), TextArenaEnv, TextArenaAction),
        Side(server, their_client(theirs.TextArenaObservation), theirs.TextArenaAction),
    )


def sides_of_openspiel() -> tuple[Side, Side]:
    from ludus.envs.openspiel import OpenSpielAction, OpenSpielEnv

    types = (theirs.OpenSpielAction, theirs.OpenSpielObservation)
    return (
        Side(partial(serving, "openspiel"), OpenSpielEnv, OpenSpielAction),
        Side(
            partial(their_server, OpenSpielEnvironment, *types),
            their_client(theirs.OpenSpielObservation),
            theirs.OpenSpielAction,
        ),
    )


def play_both(
    sides: tuple[Side, Side], fields: tuple[str, ...], play: Callable[[Recorded, type], Any]
) -> list[tuple[Any, list[tuple[dict[str, Any], float | None, bool]]]]:
    """What a script's code returns with ours and with theirs, and the results that it got."""
    played = []
    for side in sides:
        with side.server() as served:
            url = served if isinstance(served, str) else served.url
            client = Recorded(side.client(base_url=url), fields)
            played.append((play(client, side.action), client.results))
            client.close()
    return played


INVALID_WORDS = ("invalid", "error", "cannot", "already", "violation", "lost")


def parse_board(text: str) -> list[list[int]]:
    """The last board in a text: lines like `R1  .  2  5 |  4  3  8 |  6  7  9`."""
    rows = re.findall(r"^\s*R\d(.*)$", text, re.MULTILINE)[-9:]
    return [[int(cell) if cell != "." else 0 for cell in re.findall(r"[.\d]", row)] for row in rows]


def certain_moves(board: list[list[int]]) -> list[tuple[int, int, int]]:
    """The moves in cells in which only one digit is possible."""
    moves = []
    for row, column in ((row, column) for row in range(9) for column in range(9)):
        box = [line[column // 3 * 3 :][:3] for line in board[row // 3 * 3 :][:3]]
        used = {*board[row], *(line[column] for line in board), *(cell for c in box for cell in c)}
        possible = {*range(1, 10)} - used
        if board[row][column] == 0 and len(possible) == 1:
            moves.append((row + 1, column + 1, possible.pop()))
    return moves


class SudokuEnv:
    """Reads what is new in the message, and the board in it."""

    def __init__(self, client: Recorded, action: type, **task: Any) -> None:
        self.client, self.action, self.task = client, action, task
        self.valid: list[bool] = []
        self.correct_reward = 0.0

    def reset(self) -> str:
        result = self.client.reset(**self.task)
        self.done = result.done
        self.content = self.board = result.observation.messages[0].content
        return self._respond()

    def place(self, row: int, column: int, digit: int) -> str:
        result = self.client.step(self.action(message=f"[{row} {column} {digit}]"))
        self.done, self.correct_reward = result.done, float(result.reward or 0.0)
        content = result.observation.messages[0].content
        new, self.content = content[len(self.content) :], content
        self.valid.append(not any(word in new.lower() for word in INVALID_WORDS))
        if self.valid[-1] and "R1" in new and "R9" in new and "|" in new:
            self.board = new
        return self._respond()

    def _respond(self) -> str:
        moves = certain_moves(parse_board(self.board))
        state = "over" if self.done else "valid" if all(self.valid[-1:]) else "invalid"
        return f"{state} {self.board.count('.')} {moves}"


def test_sudoku_reads_the_board_and_the_validity_of_moves_from_what_is_new() -> None:
    pytest.importorskip("textarena", reason="needs the extra textarena")

    def play(client: Recorded, action: type) -> list[str]:
        env = SudokuEnv(client, action, seed=3)
        responses = [env.reset()]
        given = next(
            (row + 1, column + 1, digit)
            for row, line in enumerate(parse_board(env.board))
            for column, digit in enumerate(line)
            if digit
        )
        responses.append(env.place(*given))
        while not env.done:
            responses.append(env.place(*certain_moves(parse_board(env.board))[0]))
        assert env.valid == [False, *[True] * (len(env.valid) - 1)]
        assert env.correct_reward == 1.0
        return responses

    ours, openenvs = play_both(sides_of_textarena("Sudoku-v0-easy"), TEXTARENA_FIELDS, play)
    assert ours == openenvs
    assert len({*ours[0]}) == len(ours[0]) == 13, "each move changes the board that it shows"


GUESSES = ("[crane]", "[crane]", "[slate]", "house", "[mouse]", "[plant]", "[bread]")


class WordleEnv:
    """Responds with what is new in the message."""

    def __init__(self, client: Recorded, action: type, **task: Any) -> None:
        self.client, self.action, self.task = client, action, task

    def reset(self) -> str:
        result = self.client.reset(**self.task)
        content: str = result.observation.messages[0].content
        self.content = content
        self.reward, self.done = 0.0, False
        return self.content

    def guess(self, guess: str) -> str:
        result = self.client.step(self.action(message=guess))
        content: str = result.observation.messages[0].content
        feedback = content[len(self.content) :]
        self.content = content
        self.reward = 0.0 if "You attempted an invalid move" in feedback else result.reward
        self.done = result.done
        return feedback


@pytest.mark.usefixtures("word_lists")
@pytest.mark.parametrize("seed", range(4))
def test_wordle_responds_with_the_feedback_to_each_guess(seed: int) -> None:
    pytest.importorskip("textarena", reason="needs the extra textarena")

    def play(client: Recorded, action: type) -> list[tuple[str, float]]:
        env = WordleEnv(client, action, seed=seed)
        responses = [(env.reset(), env.reward)]
        for guess in GUESSES:
            if not env.done:
                responses.append((env.guess(guess), env.reward))
        return responses

    ours, openenvs = play_both(sides_of_textarena("Wordle-v0"), TEXTARENA_FIELDS, play)
    assert ours == openenvs
    for (response, _), guess in zip(ours[0][1:], GUESSES, strict=False):
        assert guess.strip("[]") in response
    if len(ours[0]) > 2:
        feedback, invalid = ours[0][1][0], ours[0][2][0]
        assert re.search(r"Feedback:\n.*\n[GYX ]{9}", feedback)
        assert "You attempted an invalid move" in invalid
    assert ours[0][-1][1] == 1.0


@pytest.mark.usefixtures("word_lists")
def test_the_rollout_function_of_wordle_finds_the_conversation_and_the_last_feedback() -> None:
    pytest.importorskip("textarena", reason="needs the extra textarena")

    def play(client: Recorded, action: type) -> list[tuple[str, str, int, int, float]]:
        result = client.reset(seed=1)
        turns = []
        for guess in GUESSES:
            if result.done:
                break
            messages = result.observation.messages
            history = "\n".join(f"[{each.category}] {each.content.strip()}" for each in messages)
            prompt = f"{result.observation.prompt.strip()}\n\n{history}"
            result = client.step(action(message=guess))
            feedback = next(
                each.content.split("Feedback:", 1)[-1].strip()
                for each in reversed(result.observation.messages)
                if "Feedback:" in each.content or result.done
            )
            marks = re.findall(r"^[GYX](?: [GYX]){4}$", feedback, re.MULTILINE)
            counts = (marks[-1].count("G"), marks[-1].count("Y")) if marks else (0, 0)
            turns.append((prompt, feedback, *counts, float(result.reward or 0.0)))
        return turns

    ours, openenvs = play_both(sides_of_textarena("Wordle-v0"), TEXTARENA_FIELDS, play)
    assert ours == openenvs
    assert any(greens + yellows for _, _, greens, yellows, _ in ours[0])


def format_catch(cells: list[float]) -> str:
    """Where ball and paddle are, in a grid of 10 rows and 5 columns."""
    occupied = [divmod(index, 5) for index, cell in enumerate(cells) if cell == 1.0]
    ball = next(((row, column) for row, column in occupied if row < 9), None)
    paddle = next((column for row, column in occupied if row == 9), None)
    return f"ball {ball}, paddle {paddle}"


def play_catch(client: Recorded, action: type, *, column: int, catch: bool) -> list[Any]:
    """Play an episode whose ball falls in a column: OpenEnv's server takes no seed."""
    while True:
        client.results.clear()
        observation = client.reset().observation
        if observation.info_state[column] == 1.0:
            break
    told: list[Any] = [format_catch(observation.info_state)]
    total = 0.0
    while not observation.done:
        paddle = observation.info_state[45:].index(1.0)
        target = column if catch else (column + 2) % 5
        move = 1 + (target > paddle) - (target < paddle)
        assert move in observation.legal_actions
        result = client.step(action(action_id=move, game_name="catch"))
        observation, reward = result.observation, result.reward or 0.0
        total += reward
        told.append((format_catch(observation.info_state), max(reward, 0.0)))
    return [*told, max(total, 0.0)]


@pytest.mark.parametrize("catch", [True, False])
@pytest.mark.parametrize("column", [0, 3])
def test_catch_sees_ball_and_paddle_and_is_done_at_the_bottom(column: int, catch: bool) -> None:
    pytest.importorskip("pyspiel", reason="needs the extra openspiel")
    play = partial(play_catch, column=column, catch=catch)
    ours, openenvs = play_both(sides_of_openspiel(), OPENSPIEL_FIELDS, play)
    assert ours[0] == openenvs[0] and ours[0][-1] == float(catch)
    assert ours[1][:-1] == openenvs[1][:-1]
    # Our rewards are on a scale from 0 to 1, OpenSpiel's are from -1 to 1.
    (last, reward, done), (their_last, their_reward, their_done) = ours[1][-1], openenvs[1][-1]
    assert (last, done) == (their_last, their_done) and done
    assert reward == float(catch) and their_reward == (1.0 if catch else -1.0)


@pytest.mark.usefixtures("word_lists")
def test_a_class_of_two_games_opens_a_client_for_every_episode() -> None:
    """The class of multi_env: it closes the client of a game before its next episode."""
    pytest.importorskip("textarena", reason="needs the extra textarena")
    pytest.importorskip("pyspiel", reason="needs the extra openspiel")

    def play(wordle: Side, catch: Side) -> list[Any]:
        clients: dict[str, Any] = {}
        told: list[Any] = []
        with wordle.server() as words, catch.server() as games:
            urls = {
                "wordle": words if isinstance(words, str) else words.url,
                "catch": games if isinstance(games, str) else games.url,
            }
            for game in ("wordle", "catch", "wordle", "catch"):
                side = wordle if game == "wordle" else catch
                if game in clients:
                    clients[game].close()
                client = clients[game] = side.client(base_url=urls[game])
                if game == "wordle":
                    env = WordleEnv(client, side.action, seed=2)
                    told += [env.reset(), env.guess("[crane]"), env.reward, env.done]
                    continue
                done, steps, total = client.reset().observation.done, 0, 0.0
                while not done:
                    result = client.step(side.action(action_id=1, game_name="catch"))
                    done, steps = result.observation.done, steps + 1
                    total += result.reward or 0.0
                told += [steps, abs(total) <= 1.0]
            for client in clients.values():
                client.close()
        return told

    ours, openenvs = (
        play(*sides)
        for sides in zip(sides_of_textarena("Wordle-v0"), sides_of_openspiel(), strict=True)
    )
    assert ours == openenvs
    assert ours[4:6] == [9, True] and ours[:4] == ours[6:10]


class BrowserGymLLMEnv:
    """Raises the limit of the connection, acts by strings, and shows goal, error and tree."""

    def __init__(self, client: Any, action: type, task_name: str, max_steps: int = 10) -> None:
        self.client, self.action = client, action
        self.task_name, self.max_steps = task_name, max_steps

    def reset(self, seed: int) -> str:
        self.reward, self.steps = 0.0, 0
        client = self.client.client
        client.connect()
        protocol: Any = client._ws and client._ws.protocol
        name = "max_message_size" if hasattr(protocol, "max_message_size") else "max_size"
        if getattr(protocol, name) == 2**20:
            setattr(protocol, name, 100 * 2**20)
        result = self.client.reset(task_name=self.task_name, seed=seed)
        self.done = result.done
        return self._format(result.observation)

    def act(self, action: str) -> str:
        self.steps += 1
        result = self.client.step(self.action(action_str=action))
        step_reward = float(result.reward or 0.0)
        self.reward = float(step_reward > 0) if result.done else step_reward
        self.done = result.done or self.steps >= self.max_steps
        return self._format(result.observation)

    def _format(self, observation: Any) -> str:
        parts = [f"Goal: {observation.goal}"] if observation.goal else []
        if observation.last_action_error and observation.error:
            parts.append(f"Error: {observation.error}")
        if observation.axtree_txt:
            parts.append(f"Page structure:\n{observation.axtree_txt[:2000]}")
        return "\n\n".join(parts) or "No observation available."


@needs_chromium
def test_browsergym_shows_the_same_pages_and_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("browsergym.miniwob", reason="needs the extra browsergym")
    from conformance.openenv_browsergym import (
        BrowserGymEnvironment,
        install_browser,
        serving_pages,
    )

    def play(client: Any, action: type) -> tuple[list[str], float, list[tuple[Any, ...]]]:
        env = BrowserGymLLMEnv(client, action, "enter-text")
        shown = [env.reset(seed=3)]
        name = re.search(r'Enter "(\w+)"', shown[0])
        field = re.search(r"\[(\w+)\] textbox", shown[0])
        button = re.search(r"\[(\w+)\] button", shown[0])
        assert name and field and button
        for text in (
            "send_keys('a')",
            "click('99')",
            f"fill({field[1]!r}, {name[1]!r})",
            f"click({button[1]!r})",
        ):
            assert not env.done
            shown.append(env.act(text))
        assert env.done
        return shown, env.reward, client.results

    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    install_browser(tmp_path)
    with serving_pages() as pages:
        monkeypatch.setenv("MINIWOB_URL", pages)
        sides = (
            Side(partial(serving, "browsergym"), BrowserGymEnv, BrowserGymAction),
            Side(
                partial(
                    their_server,
                    BrowserGymEnvironment,
                    theirs.BrowserGymAction,
                    theirs.BrowserGymObservation,
                ),
                their_client(theirs.BrowserGymObservation),
                theirs.BrowserGymAction,
            ),
        )
        ours, openenvs = (result for result, _ in play_both(sides, BROWSERGYM_FIELDS, play))
    assert _without_hosts(ours) == _without_hosts(openenvs)
    assert ours[1] == 1.0
    assert [fields["last_action_error"] for fields, _, _ in ours[2]] == [
        False,
        True,
        True,
        *2 * [False],
    ]


def _without_hosts(played: Any) -> Any:
    """What was played, without the addresses at which the pages are."""
    return json.loads(re.sub(r"http://[\w.:]+/", "/", json.dumps(played)))


def test_echo_gets_each_message_back_with_a_reward_for_its_length() -> None:
    sides = (
        Side(partial(serving, "echo"), EchoEnv, EchoAction),
        Side(
            partial(
                their_server, theirs.EchoEnvironment, theirs.EchoAction, theirs.EchoObservation
            ),
            their_client(theirs.EchoObservation),
            theirs.EchoAction,
        ),
    )

    def play(client: Recorded, action: type) -> list[tuple[str, float]]:
        client.reset()
        client.results.clear()
        results = [client.step(action(message=text)) for text in ("", "Hi!", "é\n" * 20)]
        return [(each.observation.echoed_message, float(each.reward)) for each in results]

    ours, openenvs = play_both(sides, ECHO_FIELDS, play)
    assert ours == openenvs
    assert [reward for _, reward in ours[0]] == [0.0, pytest.approx(0.3), 4.0]
