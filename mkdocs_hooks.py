"""Pages that are written when the site is built, so that they cannot go stale.

The home page is README.md, the examples are those of examples/, each command has a page made of its
own help, and the API reference names what the package exports.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
WIDTH = 80
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
    import typer

    from ludus.cli.main import app

    group = typer.main.get_command(app)
    return dict(_walk(group, _context(group, None, "ludus"), ()))


def _walk(command: Any, context: Any, words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    children = getattr(command, "commands", None)
    if words and not children:
        yield " ".join(words), _command_page(" ".join(words), command, context)
    names = command.list_commands(context) if children else ()
    for name in names:
        child = children[name]
        if not child.hidden:
            yield from _walk(child, _context(child, context, name), (*words, name))


def _command_page(name: str, command: Any, context: Any) -> str:
    """What a command does, its usage, its options in a table, and the guide to it."""
    parts = [f"# ludus {name}"]
    for paragraph in (command.help or "").split("\n\n"):
        text = " ".join(paragraph.split())
        parts.append(f"    {text}" if text.startswith("ludus ") else html.escape(text, quote=False))
    if (guide := COMMAND_GUIDES.get(name)) is not None:
        title = (ROOT / "docs" / guide).read_text().partition("\n")[0].removeprefix("# ")
        parts.append(f"Guide: [{title}](../{guide}).")
    parts.append(f"```text\n{command.get_usage(context)}\n```")
    kinds = {"argument": "Arguments", "option": "Options"}
    for kind, title in kinds.items():
        records = [
            param.get_help_record(context)
            for param in command.get_params(context)
            if param.param_type_name == kind
        ]
        rows = [
            f"| `{_cell(names)}` | {html.escape(_cell(text), quote=False)} |"
            for names, text in filter(None, records)
        ]
        if rows:
            parts.append("\n".join([f"## {title}\n", f"| {kind} | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """One line of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _context(command: Any, parent: Any, name: str) -> Any:
    return command.context_class(
        command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH
    )


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
