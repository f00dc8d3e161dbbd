"""The mean reward of a run and its interval are the same in every command and page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from data.sample_episodes import attempt
from ludus_process import run_ludus
from viewer.viewing import viewing

from ludus.data.episode import Episode, StopReason, format_episode_id
from ludus.data.interval_estimates import mean_interval
from ludus.data.run_folder import RunFolder
from ludus.evaluation.metrics import MEAN_REWARD, build_metrics, estimate_metric, load_attempts
from ludus.reporting.sections import read_section

TASKS = {
    "0a": [0.0, 0.0, 0.0, 0.0],
    "0b": [0.5],
    "0c": [1.0, 0.25],
    "0d": [0.25],
    "0e": [0.75, 0.0],
    "0f": [0.0],
}
"""The rewards that count, by task; not every task has as many."""
MEANS = [sum(rewards) / len(rewards) for rewards in TASKS.values()]


def write_run(folder: Path) -> RunFolder:
    """A run with all kinds of lines, which is also a training of one step."""
    run = RunFolder.create(folder, {"environment": "echo", "agent": {"model": "tiny"}})
    lines: list[Episode] = []

    def add(index: int, task: str, reward: float | None, reason: StopReason) -> None:
        name = format_episode_id(run.metadata.digest, index)
        about = {"episode_id": name, "group_id": task, "agent": {"step": 1}}
        lines.append(attempt(index, reason, reward=reward).model_copy(update=about))

    scored = [(task, reward) for task, rewards in TASKS.items() for reward in rewards]
    for index, (task, reward) in enumerate(scored):
        add(index, task, reward, StopReason.MAX_TURNS if index % 3 else StopReason.DONE)
    count = len(scored)
    add(count, "0a", 1.0, StopReason.BROKEN)  # A fault, whatever its line says.
    add(count + 1, "0b", None, StopReason.DONE)  # Unscored.
    # It was tried again.
    lines.insert(3, lines[3].model_copy(update={"stop_reason": StopReason.DEADLINE, "reward": 1.0}))
    add(0, "0a", 1.0, StopReason.DONE)  # A copy of an episode that was played already.
    run.episodes_path.write_bytes(b"".join(line.to_line() for line in lines))
    record = {"kind": "grpo", "model": "tiny", "environment": {"spec": "echo"}, "settings": {}}
    (folder / "training.json").write_text(json.dumps(record))
    (folder / "log.jsonl").write_text('{"step": 1, "reward": 0.3}\n')
    return run


def test_every_command_has_the_same_mean_and_the_same_interval(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    mean, interval = sum(MEANS) / len(MEANS), mean_interval(MEANS)
    assert interval is not None
    count = sum(map(len, TASKS.values()))
    expected = pytest.approx((mean, *interval, count))
    text = f"{mean:.3f} ({interval.low:.3f} to {interval.high:.3f})"

    listed = json.loads(run_ludus("runs", "--json", str(run.path)).stdout)
    assert (listed["mean_reward"], *listed["reward_interval"], listed["scored"]) == expected
    assert text in run_ludus("runs", str(run.path)).stdout

    found = json.loads(run_ludus("diagnose", "--json", str(run.path)).stdout)["mean_reward"]
    assert (found["value"], found["low"], found["high"], found["n"]) == expected
    assert text.replace("(", "(95 % interval ") in run_ludus("diagnose", str(run.path)).stdout

    with viewing(run.path) as viewed:
        viewed.wait_until_indexed()
        (entry,) = viewed.get("state")["entries"]
        stats = viewed.get("entry", key=entry["key"])["stats"]
    assert entry["reward"] == pytest.approx(mean)
    assert (stats["mean"], *stats["interval"], stats["scored"]) == expected
    assert (entry["episodes"], stats["episodes"], stats["broken"]) == (
        listed["episodes"], listed["episodes"], listed["broken"]
    )  # fmt: skip

    metric = next(each for each in build_metrics(1.0) if each.name == MEAN_REWARD)
    score = estimate_metric(metric, load_attempts(run, 100))
    assert score is not None and (score.value, score.low, score.high, score.n) == expected

    report = dict(read_section(run.path, samples=0, name_flags=lambda text, command: text).facts)
    assert report["Mean reward of all episodes (95 % interval)"] == text
    (run.path / "training.json").unlink()
    report = dict(read_section(run.path, samples=0, name_flags=lambda text, command: text).facts)
    assert report["Mean reward (95 % interval)"] == text
