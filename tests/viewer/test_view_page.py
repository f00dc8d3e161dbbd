"""The viewer's page in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, needs_chromium, open_page
from generated_runs import write_run
from tiny_tokenizers import of_family

from ludus.data.episode import Tokens
from ludus.data.messages import Message
from viewer.viewing import Viewed, make_episode, viewing, wait_until, write_episodes

__all__ = ["browser"]
pytestmark = needs_chromium

EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>"
    "</pre><a href='javascript:alert(4)'>x</a><iframe srcdoc='<script>alert(5)</script>'></iframe>"
    "&lt;b&gt; {{7*7}} \u202e"
)
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAA"
    "BJRU5ErkJggg=="
)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def two_runs(work: Path) -> Iterator[Viewed]:
    write_run(work / "runs" / "a", 64)
    write_run(work / "runs" / "b", 32, seed=1, model="other")
    with viewing(work / "runs") as viewed:
        viewed.wait_until_indexed()
        yield viewed


def total(page: Any) -> str:
    """The text above the table, once its filter has been applied."""
    page.locator(".episodes-list[aria-busy=false]").wait_for()
    return str(page.locator(".episodes-list header strong").inner_text())


def wait_for_total(page: Any, text: str) -> None:
    page.locator(".episodes-list header strong", has_text=text).wait_for(timeout=120_000)


def selected_row(page: Any) -> int:
    return int(page.locator(".table-row.selected").get_attribute("aria-rowindex")) - 1


@pytest.mark.parametrize("episodes", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_large_run_is_filtered_opened_and_compared(
    browser: Any, work: Path, episodes: int
) -> None:
    write_run(work / "runs" / "large", episodes)
    lines = (work / "runs" / "large" / "episodes.jsonl").read_bytes().splitlines()
    rewards = [json.loads(line)["reward"] for line in lines]
    best = sum(reward is not None and reward > 0.9 for reward in rewards)
    with viewing(work / "runs") as viewed, open_page(browser) as page:
        page.goto(viewed.address)
        page.get_by_role("link", name="episodes").first.click()
        wait_for_total(page, f"{episodes:,} episodes")
        assert page.locator(".table-row").count() < 100  # Only what is visible exists.

        page.keyboard.press("/")
        page.keyboard.type(f"after {episodes - 7}.")
        wait_for_total(page, "1 episode")
        page.get_by_label("Search").fill("")
        page.get_by_label("Where").fill("reward > 0.9")
        wait_for_total(page, f"{best:,} episodes")
        page.get_by_role("button", name="Reward").click()
        page.locator("[aria-sort=descending]").wait_for()
        wait_until(
            lambda: (
                page.locator(".table-row .badge").first.inner_text()
                == f"{max(reward for reward in rewards if reward is not None):g}"
            )
        )

        page.keyboard.press("j")
        page.keyboard.press("x")
        page.keyboard.press("j")
        page.keyboard.press("x")
        assert selected_row(page) == 2
        page.keyboard.press("Enter")
        page.get_by_role("tab", name="Transcript").wait_for()
        assert "What is" in page.locator(".transcript").inner_text()
        first = page.locator("h1").inner_text()
        page.keyboard.press("k")
        wait_until(lambda: page.locator("h1").inner_text() != first)
        page.keyboard.press("Escape")
        wait_for_total(page, f"{best:,} episodes")
        assert selected_row(page) == 1

        for index in (0, 1):
            page.locator(".table-row input").nth(index).check()
        page.keyboard.press("c")
        page.locator("text=2 episodes side by side").wait_for()
        assert page.locator(".side-head").count() == 2
        page.go_back()
        wait_for_total(page, f"{best:,} episodes")


def test_text_of_episodes_is_shown_and_never_run(browser: Any, work: Path) -> None:
    remote = {"type": "image_url", "image_url": {"url": "https://attacker.example/pixel.png"}}
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}
    messages = (
        Message(role="system", content=EVIL),
        Message.model_validate(
            {"role": "user", "content": [{"type": "text", "text": EVIL}, remote, picture]}
        ),
        *make_episode(0, EVIL).messages[1:],
    )
    evil = make_episode(
        0, EVIL, messages=messages, environment=EVIL, agent={"model": EVIL}, rewards={EVIL: 1.0}
    )
    write_episodes(work / "runs" / EVIL.replace("/", "_")[:60], evil, make_episode(1, EVIL))
    with viewing(work / "runs") as viewed, open_page(browser) as page:
        viewed.wait_until_indexed()
        page.goto(viewed.address)
        page.locator("main td").get_by_text("<script>").first.wait_for()
        page.goto(f"{viewed.address}#/episodes")
        page.locator(".table-row").get_by_text("<script>").first.wait_for()
        wait_for_total(page, "2 episodes")
        page.keyboard.press("Enter")
        page.locator(".transcript").wait_for()
        assert page.locator(".transcript").inner_text().count("<script>alert(1)</script>") >= 3
        assert page.locator(".transcript img").count() == 1  # The remote one is text.
        assert page.locator(".transcript").get_by_text("attacker.example").count() == 1
        page.get_by_role("tab", name="All fields").click()
        page.locator(".json").first.wait_for()
        page.keyboard.press("c")
        page.locator(".side-head").nth(1).wait_for()
        for tag in ("iframe", "script:not([src])", "a[href^=javascript]", "main svg[onload]"):
            assert page.locator(tag).count() == 0


def test_a_link_opens_what_it_was_copied_from(browser: Any, two_runs: Viewed) -> None:
    with open_page(browser) as page:
        page.goto(f"{two_runs.address}#/episodes?run=runs/b&where=reward+<+0.5&sort=reward")
        assert page.get_by_label("Where").input_value() == "reward < 0.5"
        expected = total(page)
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.locator("h1").wait_for()
        address, name = page.url, page.locator("h1").inner_text()
    with open_page(browser) as page:
        page.goto(address)
        page.locator("h1", has_text=name).wait_for()
        page.keyboard.press("Escape")
        wait_for_total(page, expected)
        assert selected_row(page) == 1


def test_a_bad_condition_shows_its_error_and_keeps_the_table(
    browser: Any, two_runs: Viewed
) -> None:
    with open_page(browser) as page:
        page.goto(f"{two_runs.address}#/episodes")
        wait_for_total(page, "96 episodes")
        page.get_by_label("Where").fill("reward >")
        page.get_by_role("alert").get_by_text("SQL condition").wait_for()
        assert page.locator(".table-row .badge").count() > 5
        page.get_by_label("Where").fill("reward > 2")
        page.get_by_text("No episode matches.").wait_for()


def test_two_runs_are_compared(browser: Any, two_runs: Viewed) -> None:
    with open_page(browser) as page:
        page.goto(two_runs.address)
        page.get_by_label("Select runs/a").check()
        page.get_by_label("Select runs/b").check()
        page.keyboard.press("c")
        page.get_by_text("settings differ").wait_for()
        table = page.locator("table").first.inner_text()
        assert "agent.model" in table and '"other"' in table and "temperature" not in table
        assert page.locator("figure.chart").count() >= 4
        assert page.locator("figure path.line").count() == 6  # Two runs, three curves.


def test_a_run_that_goes_on_is_followed(browser: Any, work: Path) -> None:
    write_episodes(work / "runs" / "live", make_episode(0, "one"))
    with viewing(work / "runs") as viewed, open_page(browser) as page:
        page.goto(f"{viewed.address}#/episodes")
        wait_for_total(page, "1 episode")
        write_episodes(work / "runs" / "live", make_episode(1, "two"), make_episode(2, "three"))
        wait_for_total(page, "3 episodes")
        page.locator(".table-row").nth(3).wait_for()


def test_attempts_part_where_they_differ(browser: Any, work: Path) -> None:
    write_episodes(
        work / "runs" / "r", make_episode(0, "I say hello"), make_episode(1, "I say goodbye")
    )
    with viewing(work / "runs") as viewed, open_page(browser) as page:
        viewed.wait_until_indexed()
        page.goto(f"{viewed.address}#/episode?of=runs/r&line=0")
        page.get_by_role("link", name="Side by side").click()
        page.get_by_text("The first message is the same").wait_for()
        assert page.get_by_text("they part here").count() == 2
        assert page.locator(".side-cell .shared").first.inner_text() == "I say "


def test_tokens_are_coloured_by_their_mask_and_rows_are_shown(browser: Any, work: Path) -> None:
    tokenizer = of_family("qwen3")
    tokenizer.save_pretrained(work / "student")
    ids = tuple(tokenizer("Say hello")["input_ids"])
    half = len(ids) // 2
    tokens = Tokens(
        ids=ids,
        logprobs=tuple(None if at < half else -3.0 for at in range(len(ids))),
        mask=tuple(0 if at < half else 1 for at in range(len(ids))),
    )
    agent = {"provider": "hf", "model": "student"}
    write_episodes(work / "runs" / "r", make_episode(0, "x", tokens=tokens, agent=agent))
    messages = [("user", "Hi."), ("assistant", "Hello.")]
    row = {"messages": [{"role": role, "content": content} for role, content in messages]}
    (work / "data").mkdir()
    (work / "data" / "train.jsonl").write_text(json.dumps(row) + "\n")
    (work / "data" / "test.jsonl").write_text(json.dumps(row) + "\n")
    with viewing(work) as viewed, open_page(browser) as page:
        viewed.wait_until_indexed()
        page.goto(f"{viewed.address}#/episode?of=runs/r&line=0")
        page.get_by_role("tab", name="Tokens").click()
        shown = page.locator("pre.tokens")
        shown.wait_for(timeout=120_000)
        assert shown.inner_text() == "Say hello"
        assert shown.locator(".sampled").count() == len(ids) - half
        page.get_by_role("radio", name="Log-probability").click()
        assert shown.locator(".surprise-4").count() == len(ids) - half

        page.goto(f"{viewed.address}#/dataset?key=data")
        page.locator(".dataset-row").click()
        page.locator(".transcript").get_by_text("Hello.").wait_for()
        page.goto(f"{viewed.address}#/dataset?key=data")
        page.get_by_role("link", name="test", exact=True).click()
        page.locator(".dataset-row").click()
        page.locator("h1", has_text="of test").wait_for()
        page.locator(".transcript").get_by_text("Hello.").wait_for()


def write_sft(folder: Path, steps: int) -> None:
    """A training whose loss alternates around a falling line, with a test loss at the end."""
    lines: list[dict[str, float]] = [
        {"step": step, "loss": 2 - step / 60 + step % 2 / 5, "learning_rate": step % 7 * 1e-5}
        for step in range(1, steps + 1)
    ]
    folder.mkdir(parents=True)
    (folder / "training.json").write_text(json.dumps({"kind": "sft", "settings": {}}))
    log = [*lines, {"step": steps, "eval_loss": 1.5}]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))


def lines_of(page: Any, title: str) -> list[list[str]]:
    """The classes of the paths of each line of a chart."""
    chart = page.locator("figure.chart", has=page.get_by_text(title, exact=True))
    chart.wait_for()
    return [
        line.locator("path").evaluate_all("paths => paths.map(path => path.classList[0])")
        for line in chart.locator("g[class^=series]").all()
    ]


def test_lines_of_a_chart_are_smoothed_alike_and_schedules_never(browser: Any, work: Path) -> None:
    for steps in (24, 48, 60):
        write_sft(work / "models" / f"m{steps}", steps)
    with viewing(work) as viewed, open_page(browser) as page:
        page.goto(f"{viewed.address}#/compare?first=models/m24&second=models/m48")
        assert lines_of(page, "Loss") == [["line"]] * 4
        page.goto(f"{viewed.address}#/compare?first=models/m60&second=models/m48")
        assert lines_of(page, "Loss") == [["raw", "line"]] * 4
        assert lines_of(page, "Learning rate") == [["line"]] * 2
        page.goto(f"{viewed.address}#/entry?key=models/m60")
        chart = page.locator("figure.chart", has=page.get_by_text("Loss", exact=True))
        chart.get_by_text("test 1.5").wait_for()
        assert chart.locator("circle").count() == 1, "the test loss is a dot"


def test_only_episodes_that_are_solved_are_green(browser: Any, work: Path) -> None:
    outcomes = [(0.0833, {"solved": 0.0}), (0.7, {"solved": 1.0}), (0.4, {}), (-1.0, {}), (1.0, {})]
    for number, (reward, parts) in enumerate(outcomes):
        write_episodes(work / "runs" / "r", make_episode(number, "x", reward=reward, rewards=parts))
    with viewing(work) as viewed, open_page(browser) as page:
        viewed.wait_until_indexed()
        page.goto(f"{viewed.address}#/episodes")
        badges = page.locator(".table-row .number .badge")
        wait_until(lambda: badges.count() == len(outcomes))
        tones = [badge.get_attribute("class").split()[1:] for badge in badges.all()]
        assert tones == [[], ["good"], [], ["bad"], ["good"]]
        page.goto(f"{viewed.address}#/episode?of=runs/r&line=0")
        lost = page.locator(".episode-head .badge").first
        lost.wait_for()
        assert lost.get_attribute("class").split() == ["badge"]


def test_only_the_last_reply_of_a_solved_episode_is_green(browser: Any, work: Path) -> None:
    messages = (
        Message(role="user", content="Go on."),
        Message(role="assistant", content="First."),
        Message(role="assistant", content="Second."),
    )
    steps: dict[str, Any] = {"messages": messages, "turn_rewards": (0.25, 0.25), "turns": 2}
    for number, solved in enumerate((0.0, 1.0)):
        episode = make_episode(number, "", reward=0.5, rewards={"solved": solved}, **steps)
        write_episodes(work / "runs" / "r", episode)
    with viewing(work) as viewed, open_page(browser) as page:
        viewed.wait_until_indexed()
        for line, tones in enumerate(([[], []], [[], ["good"]])):
            page.goto(f"{viewed.address}#/episode?of=runs/r&line={line}")
            page.locator("h1", has_text=f"0badcafe-{line:06d}").wait_for()
            badges = page.locator(".transcript .badge")
            badges.nth(1).wait_for()
            assert [each.get_attribute("class").split()[1:] for each in badges.all()] == tones


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_screen(browser: Any, two_runs: Viewed, width: int) -> None:
    pages = (
        *("", "entry?key=runs/a", "episodes", "episode?of=runs/a&line=0"),
        *("compare?first=runs/a&second=runs/b", "attempts?episode=runs/a:0&episode=runs/a:1"),
    )
    with open_page(browser, viewport={"width": width, "height": 800}) as page:
        for each in pages:
            page.goto(f"{two_runs.address}#/{each}")
            page.locator("main .card, main .sides").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, each
