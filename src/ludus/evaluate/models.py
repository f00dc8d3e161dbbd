"""Local models of candidates, before anybody plays: whether they are there, and still the same.

Nothing is loaded here.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ludus.data.run import RunFolder
from ludus.errors import RunError
from ludus.evaluate.candidates import Candidate

_WEIGHTS = (".safetensors", ".bin", ".gguf")


async def check_model(candidate: Candidate, run: Path) -> None:
    """Raise where a model is not to be found, or has changed since its run began.

    A run knows a model by its name. One that was trained anew under the same name must not go on
    with the episodes of the old one, nor be given its figures.
    """
    if candidate.model is None:
        return
    if not (run / "run.json").exists():
        from ludus.policy.source import find

        await asyncio.to_thread(find, candidate.model)
    elif changed_since(Path(candidate.model), RunFolder.open(run).about.created_at.timestamp()):
        raise RunError(
            f"{candidate.model} has changed since {run} was begun, which holds episodes of the old "
            "model. Use --no-resume for an evaluation beside it, or another --output-dir."
        )


def changed_since(model: Path, moment: float) -> bool:
    """Whether any weights in the folder, or the file itself, were written after that moment."""
    files = model.expanduser().iterdir() if model.expanduser().is_dir() else [model.expanduser()]
    return any(
        file.stat().st_mtime > moment
        for file in files
        if file.suffix in _WEIGHTS and file.is_file()
    )
