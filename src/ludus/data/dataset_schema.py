"""Schema of data sets, above all of `episodes.jsonl`, for the `dataset_info` of a card.

Without it, `datasets` infers the columns from the first ten megabytes. That fails as soon as a
later row differs (the first broken episode, the task of another environment), and turns the text
"42" into a number where some messages have images. So the card declares every column.

Columns whose fields are the same in all rows are structs. The others have the type `json`: they
come back as they were written, without missing keys filled in. The uploaded file is the one that
Ludus reads.

`datasets` parses every line again for `json` columns. So floats keep ten decimals, and integers are
limited to 64 bits. It must be version 4.7 or newer, as for TRL.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus.data.tool_schema import JsonObject

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
    # Not a struct: where all times are whole seconds, `datasets` would write them another way.
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
