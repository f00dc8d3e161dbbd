"""Reports in a browser: opened from disk, they load nothing and run nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import browser, needs_chromium
from data.sample_episodes import attempt, written

from ludus.data.messages import ImagePart, ImageUrl, Message
from ludus.reporting import report

__all__ = ["browser"]
pytestmark = needs_chromium

HOSTILE = (
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "</pre></style><svg onload=\"document.title='owned'\">",
    "<link rel=stylesheet href=https://example.org/a.css>",
    "<a href=\"javascript:document.title='owned'\">here</a> & `code` {{ 7 * 7 }}",
    "<iframe src=https://example.org></iframe>",
)
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "YPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
IMAGES = ("https://example.org/a.png", "data:image/svg+xml;base64,PHN2Zy8+", PIXEL)


@pytest.fixture
def page_path(tmp_path: Path) -> Path:
    parts = tuple(ImagePart(image_url=ImageUrl(url=url)) for url in IMAGES)
    images = Message(role="tool", content=parts)
    episodes = [
        attempt(
            number,
            reward=float(number % 2),
            messages=(Message(role="user", content=text), images),
        )
        for number, text in enumerate(HOSTILE)
    ]
    file = written(tmp_path / "episodes.jsonl", *episodes)
    return report(file, tmp_path / "report.html", title=HOSTILE[0], samples=9)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_loads_nothing_and_runs_nothing(
    browser: Any, page_path: Path, width: int, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    requests, problems = list[str](), list[str]()
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.goto(page_path.as_uri())
    page.wait_for_load_state("networkidle")
    loaded = [url for url in requests if not url.startswith("data:image/png;")]
    assert (loaded, problems) == ([page_path.as_uri()], [])
    assert page.title() == f"{HOSTILE[0]} · Ludus report"
    assert page.locator("script, iframe, link, object, form").count() == 0
    shown = page.locator(".turn.user pre").all_inner_texts()
    assert sorted(shown) == sorted(HOSTILE), "as text, as it was written"
    assert {image.get_attribute("src") for image in page.locator("img").all()} == {PIXEL}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    is_dark = sum(map(int, background.removeprefix("rgb(").rstrip(")").split(", "))) < 200
    assert is_dark is (scheme == "dark")
    page.close()
