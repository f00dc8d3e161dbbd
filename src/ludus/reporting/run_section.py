"""The section of a run: settings, rewards, how episodes ended, and the best and the worst."""

from __future__ import annotations

from pathlib import Path

from ludus.data.estimates import MIN_SAMPLES
from ludus.data.run_folder import RUN_FILE, RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.reporting.document import BarChart, Chart, Finding, Histogram, Section
from ludus.reporting.transcripts import EpisodeSummary, summarize_episodes

_MANY_BROKEN = 0.05
"""Share of broken episodes from which they are a problem of the run."""


def run_section(path: Path, episodes: Path, *, samples: int) -> Section:
    """Return the section about a run folder, or about a file of episodes."""
    summary = summarize_episodes(episodes, samples)
    settings: JsonObject = {}
    if (path / RUN_FILE).is_file():
        settings = RunFolder.open(path).metadata.settings
    agent = settings.get("agent", {})
    name = " ".join(str(agent[key]) for key in ("provider", "model") if agent.get(key))
    mean, totals = summary.format_mean_reward(), summary.totals
    facts = [
        ("Environment", str(settings.get("environment", ""))),
        ("Agent", name),
        ("Episodes", f"{totals.episodes:,}"),
        ("Mean reward (95 % interval)", mean),
        ("Attempts per task", str(settings.get("group_size", ""))),
        ("Tokens sampled", f"{totals.completion_tokens:,}" if totals.completion_tokens else ""),
        ("Cost", f"${totals.cost:,.2f}" if totals.cost else ""),
    ]
    return Section(
        kind="Run",
        title=str(settings.get("environment") or path.name),
        path=str(path),
        headline=f"{totals.episodes:,} episodes, mean reward {mean}",
        facts=[(title, value) for title, value in facts if value],
        findings=_findings(summary),
        charts=episode_charts(summary),
        transcripts=summary.transcripts(),
        settings=settings,
    )


def episode_charts(summary: EpisodeSummary) -> list[Chart]:
    charts, stop_reasons = list[Chart](), +summary.totals.stop_reasons
    if summary.rewards:
        charts.append(Histogram("Rewards", summary.rewards))
    if stop_reasons:
        rows = [(reason.replace("_", " "), count) for reason, count in stop_reasons.most_common()]
        charts.append(BarChart("How episodes ended", rows))
    return charts


def _findings(summary: EpisodeSummary) -> list[Finding]:
    findings, totals = [], summary.totals
    if totals.broken > _MANY_BROKEN * totals.episodes:
        share = 100 * totals.broken / totals.episodes
        text = f"{totals.broken:,} episodes ({share:.0f} %) broke, and have no reward."
        findings.append(Finding("problem", text))
    if len(summary.rewards) >= MIN_SAMPLES and max(summary.rewards) <= 0:
        text = "No episode has a reward above 0: there is none to imitate."
        findings.append(Finding("note", text))
    return findings
