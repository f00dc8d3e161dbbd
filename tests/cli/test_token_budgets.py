"""`--max-tokens` limits a reply and `--max-episode-tokens` an episode, in every command."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_stub import chat_stub

from cli.collect_cli import CLEAN_ENV, read_episodes, stub_args
from cli.in_process import Runner
from ludus.cli.flags import find_command, flags_of
from ludus.data.episode import StopReason


@pytest.mark.parametrize(
    ("command", "reply", "episode"),
    [("collect", 2048, None), ("eval", 512, None), ("train grpo", None, 0)],
)
def test_all_commands_have_the_same_token_options(
    command: str, reply: int | None, episode: int | None
) -> None:
    flags = flags_of(find_command(command))
    assert (flags["max_tokens"].default, flags["max_episode_tokens"].default) == (reply, episode)


def test_replies_share_the_token_budget_of_their_episode(tmp_path: Path) -> None:
    """A reply of the stub has about twenty tokens, and the task takes ten replies."""
    run, limits = tmp_path / "run", ("--max-tokens", "64", "--max-episode-tokens", "80")
    with chat_stub() as stub:
        task = ("--task", '{"goal": 30}', "-n", "1", "-o", run)
        done = Runner().invoke(["collect", *stub_args(stub, *limits, *task)], env=CLEAN_ENV)
        assert done.exit_code == 0, done.output
        budgets = [body["max_tokens"] for body in stub.bodies]
    (episode,) = read_episodes(run)
    assert budgets[0] == 64 and budgets[1:] == sorted(budgets[1:], reverse=True)
    assert 0 < budgets[-1] < 64 and len(budgets) == episode.turns < 10
    assert episode.stop_reason is StopReason.MAX_TOKENS
    assert episode.usage.completion_tokens >= 80
