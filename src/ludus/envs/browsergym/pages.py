"""The pages of MiniWoB++: one HTML file per task, in the `miniwob` package."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

ORIGIN = "http://miniwob.test"
"""Where the browser sees the pages. Nothing listens there: requests are answered from the files."""


@cache
def html_folder() -> Path:
    """The folder of the package's HTML files, without importing it."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'miniwob'", name="miniwob")
    return Path(spec.submodule_search_locations[0]) / "html"


@cache
def task_names() -> tuple[str, ...]:
    return tuple(sorted(page.stem for page in (html_folder() / "miniwob").glob("*.html")))


def page_url(task_name: str) -> str:
    return f"{ORIGIN}/miniwob/{task_name}.html"


def page_file(url: str) -> Path | None:
    """The file of a URL; None where there is none, or none of the package's."""
    path = url.partition("#")[0].partition("?")[0]
    if not path.startswith(f"{ORIGIN}/"):
        return None
    folder = html_folder().resolve()
    file = (folder / path.removeprefix(f"{ORIGIN}/")).resolve()
    return file if file.is_relative_to(folder) and file.is_file() else None
