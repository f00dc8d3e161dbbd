"""The documentation as a site: it builds without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import ludus
from ludus.cli.main import app

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_command_has_a_page_with_its_options(site: Path) -> None:
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for path, leaf in _leaves(name, command):
            page = (site / "commands" / f"{path}.html").read_text()
            flags = [flag for param in leaf.params for flag in param.opts if flag[:2] == "--"]
            assert not [flag for flag in flags if flag not in page], path


def _leaves(path: str, command: object) -> list[tuple[str, typer.core.TyperCommand]]:
    children = getattr(command, "commands", None)
    if children is None:
        assert isinstance(command, typer.core.TyperCommand)
        return [(path, command)]
    return [leaf for name, child in children.items() for leaf in _leaves(f"{path}-{name}", child)]


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
