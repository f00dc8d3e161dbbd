"""The documentation as a site: it builds without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ludus
from ludus.cli.commands import SECTIONS
from ludus.cli.flags import find_command, flags_of

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_command_has_a_page_with_its_options(site: Path) -> None:
    for path in (path for section in SECTIONS.values() for path in section):
        page = html.unescape((site / "commands" / f"{path.replace(' ', '-')}.html").read_text())
        for flag in flags_of(find_command(path)).values():
            name = flag.name if flag.positional else f"<code>{flag.name}"
            is_listed = re.search(rf"{re.escape(name)}\b", page) is not None
            assert is_listed is not flag.option.hidden, f"{path} {flag.name}"
            assert flag.option.hidden or flag.default_text in page, f"{path} {flag.name}"


def test_the_reference_documents_every_public_name(site: Path) -> None:
    page = (site / "reference.html").read_text()
    headings = {*re.findall(r'<h3 id="ludus\.([\w.]+)"', page)}
    ids = {*re.findall(r'id="([\w.]+)"', page)}
    missing = [
        name
        for name in ludus.__all__
        if not any(each.rpartition(".")[2] == name for each in headings | ids)
    ]
    assert not missing


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        for tag in re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", page.read_text()):
            is_remote = re.search(r"""\b(?:src|href)=["']?(?:https?:)?//""", tag)
            assert not is_remote or 'rel="canonical"' in tag, f"{page.name}: {tag}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet.name


def test_examples_and_links_to_them_are_in_the_site(site: Path) -> None:
    assert 'href="examples/grpo_multi_env.py"' in (site / "grpo.html").read_text()
    for name in ("grpo_multi_env.py", "sft_warmup.ipynb"):
        assert (site / "examples" / name).read_bytes() == (ROOT / "examples" / name).read_bytes()
