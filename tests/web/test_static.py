"""The built pages in the package belong to the sources in `frontend/`."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from starlette.requests import Request

from ludus.web import file_response, list_files

ROOT = Path(__file__).parents[2]
FRONTEND = ROOT / "frontend"
STATIC = ROOT / "src" / "ludus" / "web" / "static"
IGNORED = {"node_modules", "README.md"}


def hash_files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
        and not IGNORED & set(path.relative_to(folder).parts)
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def test_the_pages_were_built_from_these_sources() -> None:
    manifest = json.loads((STATIC / "manifest.json").read_text())
    assert hash_files(FRONTEND) == manifest["sources"], "Run `make frontend` and commit the result."


def test_the_built_files_are_those_of_the_build() -> None:
    manifest = json.loads((STATIC / "manifest.json").read_text())
    built = hash_files(STATIC)
    del built["manifest.json"]
    assert built == manifest["built"], "Run `make frontend` and commit the result."


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node")
def test_a_build_reproduces_the_committed_files(tmp_path: Path) -> None:
    shutil.copytree(FRONTEND, tmp_path / "frontend", ignore=shutil.ignore_patterns("node_modules"))
    installed = subprocess.run(
        ["npm", "ci"], cwd=tmp_path / "frontend", capture_output=True, text=True
    )
    if re.search("ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT", installed.stderr):
        pytest.skip("no package index can be reached")
    assert installed.returncode == 0, installed.stderr
    subprocess.run(["npm", "run", "build"], cwd=tmp_path / "frontend", check=True)
    assert hash_files(tmp_path / "src" / "ludus" / "web" / "static") == hash_files(STATIC)


@pytest.mark.parametrize("name", list_files())
def test_a_file_names_no_other_host(name: str) -> None:
    content = (STATIC / name).read_bytes()
    hosts = set(re.findall(rb"(?:https?:)?//([\w-]+\.[\w.-]+)", content))
    # Names of XML namespaces, which nothing is loaded from.
    assert hosts <= {b"www.w3.org"}
    assert b"sourceMappingURL" not in content


@pytest.mark.parametrize("name", ["../__init__.py", "manifest.json", "assets", "assets/", "", "x"])
def test_only_pages_and_assets_are_served(name: str) -> None:
    request = Request({"type": "http", "headers": []})
    assert file_response(request, name, {}).status_code == 404
