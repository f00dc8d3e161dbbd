from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ludus import (
    CurateConfig,
    Episode,
    Judge,
    RescoreConfig,
    Rubric,
    RubricPart,
    curate,
    rescore,
    rescore_sync,
)
from ludus.data.episode import StopReason
from ludus.data.messages import Message
from ludus.data.run_folder import RunFolder
from ludus.errors import ConfigError, ModelBusy, ProviderRefuses, RunError, StoppedEarly
from ludus.rollout.episode_run import EpisodeRun
from ludus.rollout.progress import EpisodeRecorded, ProgressEvent, RunStarted
from ludus.rollout.stats import summarize_run
from ludus.scoring.rescore import JUDGEMENTS_FILE
from scoring.reward_samples import HERE
from scoring.stored_runs import build_broken, build_episode, grade_guesses, read, write_run


def halved(episode: Episode) -> float | None:
    return None if episode.reward is None else episode.reward / 2


def inverted(episode: Episode) -> float:
    return 1 - (episode.reward or 0.0)


def judge_by_guess(messages: Sequence[Message]) -> str:
    return grade_guesses(messages[1].text)


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


class StopWhen:
    """Stops the run after a number of episodes."""

    def __init__(self, episodes: int, stop: Callable[[EpisodeRun], None]) -> None:
        self._left, self._stop = episodes, stop

    def __call__(self, event: ProgressEvent) -> None:
        if isinstance(event, RunStarted):
            self._run = event.run
        elif isinstance(event, EpisodeRecorded):
            self._left -= 1
            if self._left == 0:
                self._stop(self._run)


async def test_functions_replace_the_reward_and_the_source_stays(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [*(build_episode(i, i) for i in range(4)), build_broken(4)])
    before = files_of(run)
    result = await rescore(run, tmp_path / "new", RescoreConfig(rewards=[halved]))
    assert files_of(run) == before
    *scored, broken = read(result.folder)
    assert [episode.reward for episode in scored] == [0.0, 0.05, 0.1, 0.15]
    assert scored[3].rewards == {"size": 0.3, "halved": 0.15, "guess": 0.3}
    assert broken == build_broken(4)
    for old, new in zip(read(run), scored, strict=False):
        changed = {"reward", "rewards"}
        assert old.model_dump(exclude=changed) == new.model_dump(exclude=changed)
    comparison = result.comparison
    old_mean, new_mean = comparison.before, comparison.after
    assert old_mean is not None and new_mean is not None
    assert (old_mean.n, new_mean.n, comparison.changed) == (4, 4, 3)
    assert (old_mean.value, new_mean.value) == pytest.approx((0.15, 0.075))


async def test_weights_gates_and_the_stored_reward_combine(tmp_path: Path) -> None:
    rubric = Rubric(RubricPart("size"), RubricPart("high", lambda e: e.rewards["size"], gate=0.3))
    run = write_run(tmp_path / "run", [build_episode(0, 2), build_episode(1, 4)])
    config = RescoreConfig(rewards=[rubric, "environment=0.5", f"{HERE}:brief=0.1"])
    result = await rescore(run, tmp_path / "new", config)
    low, high = read(result.folder)
    assert low.reward == pytest.approx(0.0 + 0.1 - 0.1)
    assert high.reward == pytest.approx(0.4 + 0.2 - 0.1)
    assert high.rewards["rubric/size"] == 0.4


async def test_a_judge_scores_and_its_reasons_are_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [build_episode(i, i % 7) for i in range(20)])
    config = RescoreConfig(judge=Judge(judge_by_guess), judge_weight=2.0)
    result = await rescore(run, tmp_path / "new", config)
    assert [e.reward for e in read(result.folder)] == [pytest.approx(i % 7 / 5) for i in range(20)]
    lines = (result.folder / JUDGEMENTS_FILE).read_text().splitlines()
    assert len(lines) == 20 and json.loads(lines[0])["reason"] == "so"
    assert result.summary["judge"]["calls"] == 20


async def test_groups_are_judged_together_wherever_their_lines_are(tmp_path: Path) -> None:
    stored = [build_episode(i, i % 6, group=f"g{i % 3}") for i in range(12)]
    prompts = []

    def judge(messages: Sequence[Message]) -> str:
        prompts.append(messages[1].text)
        return grade_guesses(messages[1].text)

    run = write_run(tmp_path / "run", [*stored, build_broken(12)])
    config = RescoreConfig(judge=Judge(judge, groups=True))
    result = await rescore(run, tmp_path / "new", config)
    assert [len(prompts), *(prompt.count("<attempt id=") for prompt in prompts)] == [3, 2, 2, 2]
    *scored, broken = read(result.folder)
    assert [episode.reward for episode in scored] == [episode.reward for episode in stored]
    assert broken.broken


@pytest.mark.parametrize("stop", ["drain", "abort"])
@pytest.mark.parametrize("groups", [False, True])
async def test_a_stopped_run_resumes_and_ends_the_same(
    tmp_path: Path, stop: str, groups: bool
) -> None:
    stored = [build_episode(i, i % 10, group=f"g{i // 4}") for i in range(40)]
    run = write_run(tmp_path / "run", stored)
    calls = 0

    async def judge(messages: Sequence[Message]) -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.001)
        return grade_guesses(messages[1].text)

    def config() -> RescoreConfig:
        agent = Judge(judge, groups=groups)
        return RescoreConfig(judge=agent, rewards=[halved], concurrency=3)

    stopping = StopWhen(10, lambda rescorer: getattr(rescorer, stop)("interrupted"))
    first = await rescore(run, tmp_path / "new", config(), progress=stopping)
    assert first.stop_reason == "interrupted" and first.summary["remaining"] > 0
    assert summarize_run(RunFolder.open(first.folder))["remaining"] == first.summary["remaining"]
    with (first.folder / "episodes.jsonl").open("ab") as journal:
        journal.write(b'{"version":1,"episode_id":"c0ff')  # As a killed process leaves it.
    second = await rescore(run, tmp_path / "new", config())
    assert second.new_episodes == first.summary["remaining"] and second.summary["complete"]
    assert [episode.reward for episode in read(second.folder)] == [
        pytest.approx(i % 10 * 0.15) for i in range(40)
    ]
    before = calls
    third = await rescore(run, tmp_path / "new", config())
    assert (third.new_episodes, calls) == (0, before)
    assert third.comparison == second.comparison


async def test_a_failed_judgement_is_a_broken_episode_that_can_be_retried(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [build_episode(i, i % 10) for i in range(10)])
    confused = True

    def judge(messages: Sequence[Message]) -> str:
        if confused and "guess 7" in messages[1].text:
            return "I cannot say."
        return grade_guesses(messages[1].text)

    def config(**fields: bool) -> RescoreConfig:
        return RescoreConfig(judge=Judge(judge), **fields)  # type: ignore[arg-type]

    result = await rescore(run, tmp_path / "new", config())
    failed = [episode for episode in read(result.folder) if episode.broken]
    assert [episode.episode_id[-1] for episode in failed] == ["7"]
    assert failed[0].reward is None and failed[0].error is not None
    assert (result.summary["broken"], result.summary["scored"]) == (1, 9)
    assert result.comparison.changed == 1
    confused = False
    assert (await rescore(run, tmp_path / "new", config())).new_episodes == 0
    again = await rescore(run, tmp_path / "new", config(retry_broken=True))
    assert again.new_episodes == 1
    assert (again.summary["broken"], again.summary["scored"]) == (0, 10)
    assert again.comparison.after is not None and again.comparison.after.n == 10
    assert summarize_run(RunFolder.open(again.folder), verify=True)["broken"] == 0


@pytest.mark.parametrize("error", [ProviderRefuses("no such model"), ModelBusy("busy")])
async def test_a_judge_that_always_fails_ends_the_run_and_records_nothing(
    tmp_path: Path, error: Exception
) -> None:
    run = write_run(tmp_path / "run", [build_episode(i) for i in range(100)])

    def judge(messages: Sequence[Message]) -> str:
        raise error

    with pytest.raises(StoppedEarly, match=str(error)):
        await rescore(run, tmp_path / "new", RescoreConfig(judge=Judge(judge), concurrency=4))
    assert read(tmp_path / "new") == []
    config = RescoreConfig(judge=Judge(judge_by_guess), concurrency=4)
    with pytest.raises(RunError):  # Another judge is another run.
        await rescore(run, tmp_path / "new", config)


async def test_limits_of_the_judge_hold_over_all_starts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [build_episode(i, i % 10) for i in range(30)])

    def config(max_calls: int) -> RescoreConfig:
        return RescoreConfig(judge=Judge(judge_by_guess, max_calls=max_calls), concurrency=4)

    first = await rescore(run, tmp_path / "new", config(12))
    assert (first.summary["episodes"], first.summary["remaining"]) == (12, 18)
    assert first.stop_reason is not None and "12" in first.stop_reason
    assert (await rescore(run, tmp_path / "new", config(12))).new_episodes == 0
    rest = await rescore(run, tmp_path / "new", config(30))
    assert rest.summary["complete"] and rest.stop_reason is None


async def test_a_failing_reward_function_is_named_and_ends_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [build_episode(i) for i in range(5)])
    with pytest.raises(RunError, match="broken"):
        await rescore(run, tmp_path / "new", RescoreConfig(rewards=[f"{HERE}:broken"]))


async def test_the_attempt_that_counts_is_scored_once(tmp_path: Path) -> None:
    played = build_episode(0, 4, attempt=2)
    run = write_run(tmp_path / "run", [build_broken(0), played, build_broken(1), build_broken(1)])
    result = await rescore(run, tmp_path / "new", RescoreConfig(rewards=[halved]))
    assert [episode.reward for episode in read(result.folder)] == [0.2, None]


def test_a_rescored_run_can_be_curated(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "run", [build_episode(i, i) for i in range(10)])
    invert = RescoreConfig(rewards=[inverted])
    result = rescore_sync(run, None, invert)
    assert result.folder.parent == run.parent
    assert rescore_sync(run, None, invert).folder == result.folder
    report = curate(result.folder, tmp_path / "data", CurateConfig(min_reward=0.75))
    assert report.rows == {"train": 3}
    settings = RunFolder.open(result.folder).metadata.settings
    assert settings["environment"] == "guess" and settings["group_size"] == 4


async def test_a_training_folder_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text("{}")
    (tmp_path / "episodes.jsonl").write_bytes(build_episode(0, 4).to_line())
    result = await rescore(tmp_path, tmp_path / "new", RescoreConfig(rewards=[halved]))
    assert read(result.folder)[0].reward == 0.2
    assert read(result.folder)[0].stop_reason is StopReason.DONE


def test_invalid_sources_and_configs_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [build_episode(0)])
    config = RescoreConfig(rewards=[halved])
    for source, out in ((run, run), (tmp_path / "none", None), (tmp_path, None)):
        with pytest.raises((ConfigError, RunError)):
            rescore_sync(source, out, config)
    with pytest.raises(ConfigError, match="`rewards`"):
        rescore_sync(run, None, RescoreConfig())
    with pytest.raises(ConfigError, match="halved"):
        rescore_sync(run, None, RescoreConfig(rewards=[halved, halved]))
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "nothing was written"
