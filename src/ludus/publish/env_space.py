"""Upload of an environment as a Space, which builds its image and serves it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ludus.publish.build_context import CONTEXT_NAMES, context_files
from ludus.publish.hub_upload import SPACE, push_folder
from ludus.publish.run_card import CARD_FILE


def push_space(context: Path, repo_id: str, **options: Any) -> str:
    """Upload a build context as one commit, and return the URL of the Space.

    `options` are those of `push_folder`. Files of an older upload are deleted, others are kept.
    """
    options.setdefault("message", "Build context of the environment")
    return push_folder(
        context,
        repo_id,
        SPACE,
        files=context_files(context),
        delete_if=lambda name: name.partition("/")[0] in CONTEXT_NAMES and name != CARD_FILE,
        card=(context / CARD_FILE).read_text(encoding="utf-8"),
        **options,
    )


def space_server_url(repo_id: str) -> str:
    """The URL at which a Space serves its environment."""
    return f"https://{re.sub('[^a-z0-9]+', '-', repo_id.lower())}.hf.space"
