"""What the Hub reads: ids, the Markdown and YAML of cards, and the schema of a data set.

Without a schema, `datasets` infers the columns from the first ten megabytes. That fails as soon as
a later row differs (the first broken episode, the task of another environment), and turns the text
"42" into a number if some messages have images. So the card declares every column. Columns whose
fields are the same in all rows are structs. The others have the type `json`: they come back as
they were written, without missing keys filled in, with ten decimals and integers of 64 bits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ludus.data.tool_schema import JsonObject

HUB_ORIGIN = "https://huggingface.co"
"""The site that shows a Space in a frame."""
LOCAL_FOLDERS = frozenset(
    ("checkpoints", "data", "evals", "models", "out", "output", "outputs", "runs")
)
"""Folder names used by Ludus' commands and by most projects; none is an organization on the Hub."""


def is_hub_id(name: str, *, file_suffixes: tuple[str, ...] = ()) -> bool:
    """Whether `name` may be looked up on the Hub: `org/name`, or a single word.

    False if it begins like a path, ends with one of `file_suffixes`, or its first part is a
    folder here or usually is one (`models/wordle`).
    """
    folder, slash, rest = name.partition("/")
    if not folder or name.startswith((".", "~")) or name.endswith(("/", *file_suffixes)):
        return False
    is_path = "/" in rest or folder in LOCAL_FOLDERS or Path(folder).is_dir()
    return not slash or not is_path


_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))


def hub_front_matter(
    values: Mapping[str, object], features: Sequence[JsonObject], *, description: str = ""
) -> str:
    """The YAML block of a card on the Hub. Every value is written as JSON, which is valid YAML.

    `datasets` caches a folder by its name and this block: a changed `description` makes it read
    the files again.
    """
    lines = [f"{key}: {_yaml_value(value)}" for key, value in values.items() if value]
    if features:
        lines.append("dataset_info:")
        if description:
            lines.append(f"  description: {_yaml_value(description)}")
        lines += ["  features:", *(f"  - {_yaml_value(feature)}" for feature in features)]
    return "\n".join(["---", *lines, "---", ""])


def front_matter_size_category(rows: object) -> list[str]:
    """The Hub's `size_categories` of so many rows; empty if their number is unknown."""
    if not isinstance(rows, int):
        return []
    return [next((name for limit, name in _SIZES if rows < limit), "n>1M")]


def _yaml_value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def to_single_line(value: object) -> str:
    """Format a value as one line of printable characters, for the YAML and tables of a card."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def inline_code(value: object) -> str:
    if value is None:
        return ""
    text = to_single_line(value)
    marks = "`" * (_longest_backtick_run(text) + 1)
    return f"{marks} {text} {marks}" if "`" in text else f"{marks}{text}{marks}"


def code_block(text: str, language: str) -> str:
    """A Markdown code block, whose fence is longer than any backticks in the text."""
    fence = "`" * max(3, _longest_backtick_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_backtick_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


DATASETS_VERSION = "4.7"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a data set."""

    name: str
    feature_type: JsonObject
    """Its type in the `dataset_info` of a card's front matter."""
    description: str

    def to_feature(self) -> JsonObject:
        """The column in the schema of a data set, as `dataset_info` lists it."""
        return {"name": self.name, **self.feature_type}


INT, FLOAT, TEXT, BOOL = ({"dtype": dtype} for dtype in ("int64", "float64", "string", "bool"))
FLOAT_LIST: JsonObject = {"list": "float64"}
INT_LIST: JsonObject = {"list": "int64"}
JSON: JsonObject = {"dtype": "json"}
JSON_LIST: JsonObject = {"list": "json"}


def _struct_schema(**forms: JsonObject) -> JsonObject:
    """The schema of a data set's column that is a struct, from the types of its fields."""
    return {"struct": [{"name": name, **form} for name, form in forms.items()]}


COLUMNS = (
    Column("version", INT, "Of this format."),
    Column("episode_id", TEXT, "The same plan gives the same ids."),
    Column("attempt", INT, "Counts the retries of an episode that broke."),
    Column("stop_reason", TEXT, "Why it ended."),
    Column("reward", FLOAT, "The sum of the rewards; null: unscored."),
    Column(
        "usage",
        _struct_schema(
            prompt_tokens=INT,
            completion_tokens=INT,
            cached_tokens=INT,
            reasoning_tokens=INT,
            cost=FLOAT,
        ),
        "Tokens, and US dollars if a price is known.",
    ),
    Column("environment", TEXT, "What was played."),
    Column("task", JSON, "The arguments of reset."),
    Column("seed", INT, "The same seed gives the same task."),
    Column("group_id", TEXT, "The same for all attempts at the same task."),
    Column("agent", JSON, "Provider, model, sampling settings."),
    Column("messages", JSON_LIST, "The conversation, in OpenAI's form."),
    Column("tools", JSON_LIST, "The tools that were offered, in OpenAI's form."),
    Column("rewards", JSON, "The named parts of the reward."),
    Column("turn_rewards", FLOAT_LIST, "The environment's reward for each reply."),
    Column("progress", FLOAT_LIST, "How near it was to the goal: at first and after each reply."),
    Column("explored_turns", INT_LIST, "The turns, from 0, whose action was random."),
    Column("tutor_replies", JSON_LIST, "What the tutor would have replied, turn by turn."),
    Column("done", BOOL, "Whether the environment ended it."),
    Column("turns", INT, "How often the model spoke."),
    Column("tool_calls", INT, "How often it called a tool."),
    Column("malformed_calls", INT, "Calls that no tool could take."),
    Column(
        "error", _struct_schema(kind=TEXT, where=TEXT, message=TEXT), "What broke it, if anything."
    ),
    # Not a struct: if all times are whole seconds, `datasets` would write them another way.
    Column("timing", JSON, "When it was played, and the seconds in model and environment."),
    Column(
        "tokens",
        _struct_schema(ids={"list": "int64"}, logprobs={"list": "float64"}, mask={"list": "int8"}),
        "What a local policy sampled, token by token.",
    ),
)

OPENENV_RESULTS_FILE = "results.jsonl"
"""The same episodes as records of `openenv collect`; their `messages` begin with the question."""
OPENENV_COLUMNS = (
    Column("episode_id", TEXT, "The same plan gives the same ids."),
    Column("messages", JSON_LIST, "The conversation without the system prompt, in OpenAI's form."),
    Column("reward", FLOAT, "The sum of the rewards; null: unscored."),
    Column("done", BOOL, "Whether the environment ended it."),
    Column("tool_trace", JSON_LIST, "Every call with its arguments and its result."),
    Column("metrics", JSON, "How many turns and tool calls there were."),
    Column("verify_metrics", JSON, "The named parts of the reward."),
    Column("artifacts", JSON, "Empty."),
    Column("task", JSON, "The arguments of reset."),
    Column("extra", JSON, "`system`: the system prompt; `tools`: the tools that were offered."),
)
