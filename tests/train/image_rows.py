"""Curated rows with images."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from policy.vision.image_env import GALLERY
from rollout.small_runs import run as collect_run

from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import RandomAgent
from ludus.curation import CurateConfig, curate


def image_rows(folder: Path, to: Literal["sft", "dpo"]) -> Path:
    """Rows of solved episodes; for DPO, pairs with episodes of a random agent."""
    agents = {"solved": OracleAgent(), "random": RandomAgent()}
    runs = [folder / name for name in agents if to == "dpo" or name == "solved"]
    for run in runs:
        asyncio.run(collect_run(run, agents[run.name], spec=GALLERY, n=6))
    curate(runs, folder / to, CurateConfig(to=to))
    return folder / to
