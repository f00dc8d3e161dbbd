"""`ludus collect`: its options and its output."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from chat_stub import chat_stub

from cli.collect_cli import (
    COUNTER,
    collect,
    episode_indexes,
    error_line,
    read_episodes,
    read_summary,
    stub_args,
)
from ludus.agents.agent import EpisodeContext, Player
from ludus.agents.oracle import OracleAgent
from ludus.cli.display.run_display import RunDisplay
from ludus.cli.display.status import JsonStatus, LogStatus
from ludus.data.episode_reader import episodes
from ludus.rollout import CollectConfig
from ludus.rollout.collect import collect as collect_episodes


def test_the_turns_that_the_rules_give_are_played_and_a_lower_limit_is_said(tmp_path: Path) -> None:
    grids = ("sudoku", "-n", "3", "--task", '{"size": 9, "difficulty": "hard"}')
    whole = collect(*grids, "-o", tmp_path / "whole")
    assert read_summary(tmp_path / "whole")["mean_reward"] == 1.0
    assert "cut off" not in whole.stdout
    short = collect(*grids, "--max-turns", "4", "-o", tmp_path / "short")
    assert "3 of 3 episodes reached --max-turns." in short.stdout
    game = collect("openspiel:connect_four", "--agent", "random", "-n", "2", cwd=tmp_path)
    assert "cut off" not in game.stdout


def test_shares_of_a_solved_puzzle_add_up_to_the_full_reward(tmp_path: Path) -> None:
    run = collect("sudoku", "-n", "20", "--task", "size=9", "-o", tmp_path / "run")
    assert run.returncode == 0
    assert {episode.reward for episode in episodes(tmp_path / "run")} == {1.0}


def test_the_summary_names_the_counts_the_reward_and_the_folder(tmp_path: Path) -> None:
    done = collect("catch", "-n", "4", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    (folder,) = (tmp_path / "runs").iterdir()
    assert ["episodes", "4"] in lines
    assert "mean reward 1.000 (95 % interval 0.510 to 1.000), n = 4" in map(" ".join, lines)
    assert ["run", f"runs/{folder.name}"] in lines
    assert "\x1b" not in done.stdout
    again = collect("catch", "-n", "4", cwd=tmp_path)
    assert "4 (none new" in again.stdout
    assert [folder] == list((tmp_path / "runs").iterdir())


def test_a_long_path_is_printed_in_full(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 20)
    done = collect("catch", "-n", "1", "-o", folder, env={"COLUMNS": "80"})
    assert str(folder) in done.stdout.replace("\n", "")


def test_with_json_every_line_is_json_and_the_last_is_the_summary(tmp_path: Path) -> None:
    done = collect("catch", "-n", "4", "--json", "-o", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    *_, printed = map(json.loads, done.stdout.splitlines())
    assert printed["event"] == "summary"
    assert {name: printed[name] for name in ("episodes", "mean_reward", "complete", "folder")} == {
        "episodes": 4,
        "mean_reward": 1.0,
        "complete": True,
        "folder": str(tmp_path / "run"),
    }


class SlowOracle(OracleAgent):
    async def begin(self, context: EpisodeContext) -> Player:
        await asyncio.sleep(0.3)
        return await super().begin(context)


async def collect_with_display(display: RunDisplay, out: Path) -> None:
    with display:
        config = CollectConfig(agent=SlowOracle(), num_episodes=8)
        await collect_episodes("catch", out, config, progress=display)


async def test_a_log_file_gets_plain_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await collect_with_display(RunDisplay(LogStatus(interval_s=0.05)), tmp_path / "run")
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    lines = [line for line in stderr.splitlines() if line != "Checking catch"]
    assert lines and all(re.match(r"\d/8 episodes, \d[\d.,]*/s", line) for line in lines), lines


async def test_json_progress_is_printed_periodically(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await collect_with_display(RunDisplay(JsonStatus(interval_s=0.05)), tmp_path / "run")
    stdout, stderr = capfd.readouterr()
    first = json.loads(stdout.splitlines()[0])
    assert stderr == "" and (first["event"], first["planned"]) == ("progress", 8)
    assert first["remaining"] == 8 and first["active"] > 0


def test_no_resume_starts_a_second_run_beside_the_first(tmp_path: Path) -> None:
    collect("catch", "-n", "2", "-o", "run", cwd=tmp_path)
    done = collect("catch", "-n", "3", "-o", "run", "--no-resume", cwd=tmp_path)
    assert done.returncode == 0 and "run-2" in done.stdout
    assert (episode_indexes(tmp_path / "run"), episode_indexes(tmp_path / "run-2")) == (
        [0, 1],
        [0, 1, 2],
    )


def test_group_size_repeats_tasks_and_seed_selects_them(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        options = ("--seed", seed, "--group-size", "2", "-o", tmp_path / seed)
        assert collect("catch", "-n", "4", *options).returncode == 0
    first, second = (
        [episode.group_id for episode in read_episodes(tmp_path / seed)] for seed in ("1", "2")
    )
    assert first[0] == first[1] != first[2] == first[3]
    assert not {*first} & {*second}


def test_a_mixture_is_sampled_by_its_weights(tmp_path: Path) -> None:
    done = collect(f"catch=0.75,{COUNTER}=0.25", "-n", "8", "-o", tmp_path / "run")
    assert done.returncode == 0
    played = [episode.environment for episode in read_episodes(tmp_path / "run")]
    assert (played.count("catch"), played.count(COUNTER)) == (6, 2)


def test_the_random_provider_plays(tmp_path: Path) -> None:
    done = collect("catch", "-n", "10", "--provider", "random", "-o", tmp_path / "run")
    assert done.returncode == 0
    found = read_episodes(tmp_path / "run")
    assert {episode.agent["provider"] for episode in found} == {"random"}
    assert len({episode.messages[2].model_dump_json() for episode in found}) > 1
    assert 0.0 <= read_summary(tmp_path / "run")["mean_reward"] < 1.0


def test_the_human_provider_plays_episodes_in_turn(tmp_path: Path) -> None:
    by_hand = ("--provider", "human", "--task", '{"goal": 5}', "-n", "2", "-o", tmp_path / "run")
    done = collect(COUNTER, *by_hand, typed="2\n3\n1\n4\n", timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    texts = ("Reach 5.", "Total 2.", "Total 5.", "Total 1.")
    assert [done.stdout.count(text) for text in texts] == [2, 1, 2, 1]
    found = [(e.reward, e.turns, e.agent["provider"]) for e in read_episodes(tmp_path / "run")]
    assert found == [(1.0, 2, "human")] * 2


def test_retry_broken_replays_broken_episodes(tmp_path: Path) -> None:
    with chat_stub(script=["reply", 500]) as stub:
        once = ("--concurrency", "1", "--max-attempts", "1", "--max-retries", "0")
        command = stub_args(stub, "-n", "3", *once, "-o", tmp_path / "run")
        first = collect(*command)
        assert first.returncode == 0 and "--retry-broken" in first.stdout
        assert [e.broken for e in read_episodes(tmp_path / "run")].count(True) == 1
        again = collect(*command, "--retry-broken")
    assert again.returncode == 0 and "3 (1 new)" in again.stdout
    facts = read_summary(tmp_path / "run")
    assert (facts["episodes"], facts["scored"], facts["broken"]) == (3, 3, 0)


@pytest.mark.parametrize(
    ("limit", "amount"),
    [
        (("--max-total-tokens", "20000"), "20,000"),
        (("--max-cost", "2"), "$2"),
    ],
)
def test_a_budget_stops_the_run(limit: tuple[str, str], amount: str, tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"stub": {"input": 100, "output": 100}}')
    with chat_stub() as stub:
        command = stub_args(stub, "-n", "100", "--prices", prices, "-o", tmp_path / "run")
        done = collect(*command, *limit, "--concurrency", "1")
    assert (done.returncode, done.stderr) == (0, "")
    recorded = len(read_episodes(tmp_path / "run"))
    (left,) = [line for line in done.stdout.splitlines() if line.startswith("Left to do")]
    assert f"{100 - recorded} episodes" in left and amount in left
    usage = read_summary(tmp_path / "run")["usage"]
    spent = usage["prompt_tokens"] + usage["completion_tokens"]
    assert 15_000 < spent < 30_000
    assert usage["cost"] == pytest.approx(spent / 10_000)


def test_a_budget_holds_when_short_episodes_finish_first(tmp_path: Path) -> None:
    with chat_stub(latency=0.02) as stub:
        limit = ("--max-total-tokens", "20000")
        assert (
            collect(*stub_args(stub, "-n", "100", *limit, "-o", tmp_path / "run")).returncode == 0
        )
    usage = read_summary(tmp_path / "run")["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] < 60_000


def test_max_cost_needs_a_price(tmp_path: Path) -> None:
    with chat_stub() as stub:
        done = collect(*stub_args(stub, "--max-cost", "1", "-o", tmp_path / "run"))
    assert "--max-cost" in error_line(done)
    assert not (tmp_path / "run").exists() and stub.replies == 0


def test_the_anthropic_provider_uses_its_api(tmp_path: Path) -> None:
    with chat_stub(key="sk-ant-0123456789abcdef") as stub:
        done = collect(
            *(COUNTER, "--provider", "anthropic", "--model", "claude-x"),
            *("--llm-endpoint", stub.url, "-n", "2", "-o", tmp_path / "run"),
            env={"ANTHROPIC_API_KEY": "sk-ant-0123456789abcdef"},
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert {*stub.paths} == {"/v1/messages"}
    assert stub.bodies[0]["model"] == "claude-x"
    found = read_episodes(tmp_path / "run")
    assert [episode.stop_reason.value for episode in found] == ["done", "done"]
    calls = found[0].messages[2].tool_calls
    assert calls is not None and calls[0].function.name == "add"


def test_a_tutor_and_random_actions_are_chosen_by_flags(tmp_path: Path) -> None:
    flags = ("--provider", "random", "--tutor", "oracle", "--explore", "0.5", "--working")
    done = collect("catch", "-n", "3", *flags, "-o", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    for episode in read_episodes(tmp_path / "run"):
        assert len(episode.tutor_replies) == episode.turns
        assert episode.agent["explore"] == 0.5 and episode.agent["tutor"]["working"] is True


def test_a_server_is_that_of_the_tutor_if_the_player_has_no_model(
    tmp_path: Path,
) -> None:
    with chat_stub() as stub:
        tutor = ("--provider", "random", "--tutor", "openai:stub", "--llm-endpoint", stub.url)
        limits = ("--max-tokens", "50")
        done = collect(COUNTER, "-n", "1", *tutor, *limits, "-o", tmp_path / "run")
        assert done.returncode == 0, done.stderr
        asked = {body.get("max_completion_tokens", body.get("max_tokens")) for body in stub.bodies}
    assert asked == {50}


def test_a_run_without_a_budget_is_refused(tmp_path: Path) -> None:
    with chat_stub() as stub:
        done = collect(*stub_args(stub, "--max-total-tokens", "0", "-o", tmp_path / "run"))
        assert done.returncode != 0 and not stub.bodies


def test_an_unknown_tutor_is_refused_in_one_line(tmp_path: Path) -> None:
    done = collect("catch", "--tutor", "orcale", "-o", tmp_path / "run")
    assert done.returncode == 1 and "oracle" in error_line(done)


def test_what_an_environment_prints_is_not_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "from world import Counter\n"
        "class Loud(Counter):\n"
        "    'A counter that prints.'\n"
        "    def reset(self, **task):\n"
        "        print('HELLO')\n"
        "        return super().reset(**task)\n"
    )
    done = collect("loud.py:Loud", "-n", "3", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all("event" in json.loads(line) for line in done.stdout.splitlines())
    assert "HELLO" in done.stderr
