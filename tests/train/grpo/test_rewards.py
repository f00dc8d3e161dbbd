from __future__ import annotations

from pathlib import Path

from scoring.reward_samples import HERE

from ludus import grpo
from train.grpo.toy_environments import CLIMB, PICK, read_episodes, small_config
from train.short_runs import read_curve


def test_a_mixture_logs_rewards_per_environment_and_never_nan(model: Path, tmp_path: Path) -> None:
    config = small_config(
        steps=3,
        groups=2,
        reward_funcs=(f"{HERE}:climbing=2", f"{HERE}:brief=0.1"),
        max_episode_tokens=96,
    )
    grpo(f"{PICK}=0.5,{CLIMB}=0.5", str(model), tmp_path / "out", config)
    log = read_curve(tmp_path / "out")
    assert "NaN" not in (tmp_path / "out" / "log.jsonl").read_text()
    assert all(value is not None for line in log for value in line.values())
    means = {f"rewards/{name}/mean" for name in (PICK, CLIMB, "climbing", "brief")}
    assert means <= set().union(*log)
    # A step without an environment logs no metrics of it.
    alone = [line for line in log if f"rewards/{CLIMB}/mean" not in line]
    assert all("rewards/climbing/mean" not in line for line in alone)
    for episode in read_episodes(tmp_path / "out"):
        names = [tool["function"]["name"] for tool in episode.tools]
        assert names == (["climb"] if "Climb" in episode.environment else ["pick"])
