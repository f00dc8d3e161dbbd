"""Uploads of run folders, data sets and trained models, for `ludus push` and --push-to-hub.

Each upload shows its progress on a terminal and returns the URL of the repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.errors import ConfigError

if TYPE_CHECKING:
    from ludus.publish.hub_upload import RepoKind


@dataclass(frozen=True, slots=True)
class HubTarget:
    """A repository on the Hub to upload to, as --push-to-hub names it: NAME or NAME:private."""

    repo_id: str
    private: bool

    @classmethod
    def parse(cls, text: str) -> HubTarget:
        repo_id, colon, visibility = text.partition(":")
        if colon and visibility not in ("private", "public"):
            raise ValueError(f"{text!r} is not USER/NAME or USER/NAME:private")
        return cls(repo_id, visibility == "private")

    def check(self, kind: RepoKind | None = None) -> None:
        """Check offline that the name is valid and that there is a login."""
        from ludus.publish.hub_upload import DATASET, check_login, check_upload_target

        check_upload_target(self.repo_id, kind or DATASET)
        check_login()

    def create(self, kind: RepoKind | None = None) -> None:
        """Create the repository, before the work begins, so that a refusal costs nothing."""
        from ludus.publish.hub_upload import DATASET, open_repo

        open_repo(self.repo_id, kind or DATASET, private=self.private)


def push_data(
    folder: Path, repo_id: str, *, private: bool, retry_command: str, command: str | None = None
) -> str:
    """Upload a run, with its records for OpenEnv, or a data set of `ludus curate`."""
    from ludus.curation.formats.openenv import write_openenv_records
    from ludus.curation.pipeline import DATASET_FILES
    from ludus.data.run_folder import RUN_FILE
    from ludus.data.stage_output import CURATION_FILE
    from ludus.publish.hub_upload import RUN_FILES, push_folder

    files: Sequence[str] = RUN_FILES
    if (folder / RUN_FILE).is_file():
        write_openenv_records(folder)
    elif (folder / CURATION_FILE).is_file():
        names = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
        files = sorted(str(name) for name in names if name.parts[0] in DATASET_FILES)
    else:
        raise ConfigError(
            f"{folder} is neither a run of `ludus collect` nor a data set of `ludus curate`: it "
            f"has no {RUN_FILE} and no {CURATION_FILE}."
        )
    with _show_upload(repo_id):
        return push_folder(
            folder,
            repo_id,
            private=private,
            files=files,
            retry_command=retry_command,
            command=command,
        )


def push_trained_model(folder: Path, repo_id: str, *, private: bool, retry_command: str) -> str:
    """Upload the model in this folder.

    The repository becomes the title of its card, unless the user wrote one.
    """
    from ludus.publish.hub_upload import push_model
    from ludus.train.output.model_card import build_model_card
    from ludus.train.output.record import read_record
    from ludus.train.output.training_folder import CARD_FILE

    file, record = folder / CARD_FILE, read_record(folder)
    card = file.read_text(encoding="utf-8-sig") if file.is_file() else ""
    if record is not None and card in ("", build_model_card(record, name=str(folder))):
        card = build_model_card(record, name=repo_id)
    with _show_upload(repo_id):
        return push_model(folder, repo_id, card=card, private=private, retry_command=retry_command)


@contextmanager
def _show_upload(repo_id: str) -> Iterator[None]:
    """Show on a terminal that files are sent; Ctrl-C says how to go on."""
    from ludus.cli.display.signals import handle_signals
    from ludus.cli.display.status import PhaseStatus, terminal_status
    from ludus.rollout.progress import PhaseProgress

    try:
        with handle_signals(), terminal_status() as status:
            status.show(PhaseStatus(PhaseProgress(f"Uploading to {repo_id}")))
            yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "The upload was stopped; the same command sends the rest."
        ) from None
