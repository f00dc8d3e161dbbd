"""The state of a recipe: what each stage was run with, in `recipe.json` of its output folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ludus.data.atomic_write import write_atomically
from ludus.errors import RunError

STATE_FILE = "recipe.json"


class StageRecord(BaseModel):
    """What a stage was started with and, once it is done, its result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str
    settings: dict[str, Any]
    inputs: dict[str, str] = Field(default_factory=dict)
    """Digests of the results of earlier stages, and of files that the settings name."""
    code: dict[str, str] = Field(default_factory=dict)
    """Version of Ludus, and digests of the code of environments."""
    done: bool = False
    seconds: float = 0.0
    """Over all starts; what a killed start has spent is not known."""
    output: str = ""
    """Digest of the result."""
    output_stat: str = ""
    """Digest of sizes and times of its files, from which follows whether `output` still holds."""


class RecipeState(BaseModel):
    """The stages of a recipe that were started, by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    stages: dict[str, StageRecord] = Field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> RecipeState:
        """Read the state; a folder without one gives an empty state."""
        file = folder / STATE_FILE
        try:
            return cls.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
        except ValidationError:
            raise RunError(
                f"{file} is damaged, or of another version of Ludus. Remove it: stages whose "
                "result is complete only check it again."
            ) from None

    def with_record(self, name: str, record: StageRecord) -> RecipeState:
        return self.model_copy(update={"stages": {**self.stages, name: record}})

    def save(self, folder: Path) -> None:
        """Write the state, completely or not at all."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False)
        write_atomically(folder / STATE_FILE, text + "\n")


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ, or that only one of the two has."""
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
