"""Pages that are written when the site is built, so that they cannot go stale.

The home page is README.md, the examples are those of examples/, each command has a page made of its
own help, and the API reference names what the package exports.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

if TYPE_CHECKING:
    from ludus.cli.flags import Flag

ROOT = Path(__file__).parent
GENERATED = {"index.md", "reference.md", "changelog.md", "examples/README.md"}
GROUPS = {
    "Functions": str.islower,
    "Configurations": lambda name: name.endswith("Config") or name == "Lora",
    "Classes": lambda name: True,
}
"""Sections of the API reference; a name is in the first that takes it."""


COMMAND_GUIDES = {
    "run": "recipes.md",
    "new": "recipes.md",
    "doctor": "quickstart.md",
    "envs": "shipped.md",
    "play": "quickstart.md",
    "init": "first-environment.md",
    "check": "environments.md",
    "serve": "serving.md",
    "build": "containers.md",
    "collect": "collecting.md",
    "import": "curating.md",
    "rescore": "rewards.md",
    "curate": "curating.md",
    "lint": "curating.md",
    "train sft": "training.md",
    "train dpo": "training.md",
    "train tutor": "tutor.md",
    "train grpo": "grpo.md",
    "diagnose": "diagnosing.md",
    "eval": "evaluating.md",
    "push env": "containers.md",
    "push dataset": "publishing.md",
    "push model": "publishing.md",
    "serve-model": "serving-models.md",
    "view": "viewer.md",
    "report": "reports.md",
}
"""The guide to each command."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out pages that do not exist, and list the commands."""
    assert isinstance(config.nav, list)
    config.nav = _existing(config.nav, Path(config.docs_dir))
    pages = [{f"ludus {name}": _command_path(name)} for name in commands()]
    config.nav.append({"Commands": pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    for path in sorted((ROOT / "examples").glob("*.*")):
        if path.suffix in {".py", ".ipynb"}:
            file = File.generated(config, f"examples/{path.name}", abs_src_path=str(path))
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links between docs/, examples/ and the repository's root, as they lie in the site."""
    if page.file.src_uri == "index.md":
        return markdown.replace("](docs/", "](").replace("](CHANGELOG.md", "](changelog.md")
    if page.file.src_uri.startswith("examples/"):
        return markdown.replace("](../docs/", "](../")
    return markdown.replace("](../examples/", "](examples/").replace("](../README.md", "](index.md")


def pages() -> dict[str, str]:
    """The text of each page that is written here, by its path in the site."""
    written = {
        "index.md": (ROOT / "README.md").read_text(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "examples/README.md": (ROOT / "examples" / "README.md").read_text(),
        "reference.md": api_reference(),
    }
    return written | {_command_path(name): page for name, page in commands().items()}


def commands() -> dict[str, str]:
    """The page of each command, by the words that are typed after `ludus`."""
    from ludus.cli.commands import SECTIONS

    return {path: _command_page(path) for section in SECTIONS.values() for path in section}


def _command_page(path: str) -> str:
    """What a command does, the guide to it, its usage, and its options by panel."""
    from ludus.cli.flags import find_command, flags_of
    from ludus.options import Group

    run = find_command(path)
    flags = flags_of(run)
    listed = [flag for flag in flags.values() if not flag.option.hidden]
    parts = [f"# ludus {path}"]
    for text in (run.__doc__ or "").split("\n\n"):
        parts.append(f"    {text}" if text.startswith("ludus ") else html.escape(text, quote=False))
    if (guide := COMMAND_GUIDES.get(path)) is not None:
        title = (ROOT / "docs" / guide).read_text().partition("\n")[0].removeprefix("# ")
        parts.append(f"Guide: [{title}](../{guide}).")
    usage = [f"ludus {path}", *(flag.name for flag in listed if flag.positional), "[OPTIONS]"]
    parts.append(f"```text\n{' '.join(usage)}\n```")
    for panel in get_args(Group):
        rows = [
            f"| `{_cell(_names(flag))}` | {_cell(html.escape(_text(flag, flags), quote=False))} |"
            for flag in listed
            if flag.option.group == panel
        ]
        if rows:
            parts.append("\n".join([f"## {panel}\n", "| option | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _names(flag: Flag) -> str:
    """The names of an option, and what its value may be."""
    if flag.positional:
        return flag.name
    names = [flag.name, f"-{flag.option.short}"] if flag.option.short else [flag.name]
    if flag.is_switch:
        return ", ".join(names if flag.default is False else [*names, f"--no-{flag.name[2:]}"])
    hints = [flag.hint, *get_args(flag.hint)]
    choices = [choice for hint in hints if get_origin(hint) is Literal for choice in get_args(hint)]
    kind = next((kind.__name__ for kind in (int, float, Path) if kind in hints), "text")
    return f"{', '.join(names)} {flag.option.metavar or '|'.join(choices) or kind.upper()}"


def _text(flag: Flag, flags: Mapping[str, Flag]) -> str:
    from ludus.cli.flags import name_flags

    text = name_flags(flag.help, flags)
    if flag.default is MISSING:
        return f"{text} Required."
    return f"{text} Default: {flag.default_text}." if flag.default_text else text


def _cell(text: str) -> str:
    """One line of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _command_path(name: str) -> str:
    return f"commands/{name.replace(' ', '-')}.md"


def api_reference() -> str:
    """Directives for every name that `ludus` exports."""
    import ludus

    names = list(ludus.__all__)
    parts = ["# API reference"]
    parts += ["What `import ludus` exports. [Python API](python.md) is the guide."]
    for title, takes in GROUPS.items():
        parts += [f"## {title}", *(f"::: ludus.{name}" for name in names if takes(name))]
        names = [name for name in names if not takes(name)]
    return "\n\n".join(parts) + "\n"


def _existing(nav: list[Any], docs: Path) -> list[Any]:
    """The same navigation without pages that are neither in docs/ nor written here."""
    kept: list[Any] = []
    for entry in nav:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            kept.append({title: _existing(target, docs)})
        elif target in GENERATED or (docs / target).is_file():
            kept.append(entry)
    return kept
