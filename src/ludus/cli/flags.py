"""Commands from functions: each field of a config that a function takes becomes an option.

    @command
    def sft_command(data: Data, *, model: Model, config: TrainConfig, ...)

Parameters before `*` are the arguments of the command. Options are declared in the config; see
`ludus.options`. Their values come from the command line (the last one counts, and `--set` comes
after all others), then from the TOML file of `--config`, or from the table of a recipe.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, Token
from cyclopts.argument import Argument, ArgumentCollection
from cyclopts.exceptions import UnusedCliTokensError

from ludus import options
from ludus.cli.commands import SECTIONS
from ludus.errors import ConfigError, did_you_mean
from ludus.options import Option

if TYPE_CHECKING:
    from ludus.data.tool_schema import JsonObject

HELP_ALL, INSTALL_COMPLETION = "--help-all", "--install-completion"
CONFIG, SET = "config", "set"
_ARGUMENT = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)(?:=([^`]+))?`")
_running: Mapping[str, Flag] = {}
"""The options of the running command. A process runs one."""
Command = Callable[..., Any]
_PANELS = {name: Group(name, sort_key=order) for order, name in enumerate(get_args(options.Group))}


@dataclass(frozen=True, slots=True)
class Flag:
    """An option or an argument of a command."""

    key: str
    """In recipes and TOML: `num_episodes` for --num-episodes."""
    hint: Any
    option: Option
    help: str
    default: object
    targets: tuple[tuple[str, str], ...]
    """The fields that it sets, as (parameter, field); one without a config has no field."""
    positional: bool = False

    @property
    def name(self) -> str:
        """As it is typed: --num-episodes, or the placeholder of an argument."""
        if self.positional:
            return self.option.metavar or self.key.upper()
        return "--" + self.key.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        return bool in (self.hint, *get_args(self.hint))

    @property
    def item_type(self) -> Any:
        """Of a list, the type of its items: Path for `list[Path] | None`. Else None."""
        hints = (self.hint, *get_args(self.hint))
        several = [hint for hint in hints if get_origin(hint) in (list, tuple, Sequence)]
        return get_args(several[0])[0] if several else None

    @property
    def is_repeatable(self) -> bool:
        several = self.item_type is not None and self.option.parse is None
        return self.option.combine is not None or several

    @property
    def default_text(self) -> str:
        """The default as the help shows it; may be empty."""
        if self.option.default:
            return self.option.default
        # Not `in`: 0 is equal to False.
        is_off = self.default is MISSING or self.default is None or self.default is False
        return "" if is_off or self.default in ((), "", {}) else str(self.default)

    def parameter(self, name_flags: Callable[[str], str]) -> inspect.Parameter:
        """The parameter that cyclopts reads."""
        option, hint, more = self.option, self.hint, dict[str, Any]()
        parse, combine, complete = option.parse, option.combine, option.complete
        if combine is not None:
            hint = list[Any] | None
            # In a list, because cyclopts checks the type.
            more["converter"] = lambda _, tokens: [combine([token.value for token in tokens])]
        elif parse is not None:
            # The shell offers files for a Path.
            hint = Path if parse is options.expand_path else Any
            more["converter"] = lambda _, tokens: parse(tokens[-1].value)
        elif self.positional and hint is str and complete is None:
            hint = str | Path
        if complete is not None:
            more["completer"] = lambda _: list(complete())
        if not self.positional:
            more["name"] = [self.name, f"-{option.short}"] if option.short else self.name
        if self.default is False or not self.is_switch:
            more["negative"] = ()
        lists_all = HELP_ALL in sys.argv or INSTALL_COMPLETION in sys.argv
        required = self.default is MISSING
        several = self.positional and self.is_repeatable
        if several:
            # A text may name a file, which the shell offers.
            hint = str | Path if self.item_type is str else self.item_type
            more["required"] = required
        default = self.default_text
        parameter = Parameter(
            group=_PANELS[option.group],
            show=not option.hidden and (not option.advanced or lists_all),
            help=name_flags(self.help),
            metavar=option.metavar or None,
            env_var=option.env_var or None,
            show_default=(lambda _: default) if default else False,
            json_list=False,
            allow_repeating=True,  # The last one counts, as scripts that add options rely on.
            **more,
        )
        kinds = inspect.Parameter
        positional = kinds.VAR_POSITIONAL if several else kinds.POSITIONAL_ONLY
        return inspect.Parameter(
            f"{self.key}_" if iskeyword(self.key) else self.key,
            positional if self.positional else kinds.KEYWORD_ONLY,
            default=inspect.Parameter.empty if required or several else None,
            annotation=Annotated[hint if required or several else hint | None, parameter],
        )

    def texts(self, value: object) -> list[str]:
        """The values of the option that a value of a TOML table stands for."""
        return to_texts(value) if self.is_repeatable else [to_text(value)]

    def words(self, value: object) -> Iterator[str]:
        """The words of a command line that give the option this value of a TOML table."""
        if self.is_switch:
            yield self.name if value else f"--no-{self.name[2:]}"
            return
        for text in self.texts(value):
            if self.positional:
                yield text
            else:  # In one word if the value begins with a dash.
                yield from [f"{self.name}={text}"] if text.startswith("-") else [self.name, text]


def command(function: Command | None = None, *, without: Sequence[str] = ()) -> Command:
    """Turn a function into a command, with a parameter per flag in place of each config.

    Fields in `without` get no flag.
    """
    if function is None:
        return functools.partial(command, without=without)
    hints = get_type_hints(function).items()
    configs: dict[str, type] = {
        name: hint for name, hint in hints if isinstance(hint, type) and is_dataclass(hint)
    }
    flags = {flag.key: flag for flag in _flags(function) if flag.key not in without}
    if configs:
        option = Option("Basics", advanced=True, metavar="FILE")
        text = "TOML file with options of this command; the command line takes precedence."
        flags.setdefault(CONFIG, Flag(CONFIG, Path | None, option, text, None, ()))
        option = Option("Basics", advanced=True, metavar="KEY=VALUE", combine=refuse_settings)
        text = "Any setting, also a rare one; repeatable."
        flags.setdefault(SET, Flag(SET, list[str], option, text, None, ()))
    arguments = [flag.key for flag in flags.values() if flag.positional]

    def run(*given: Any, **values: Any) -> Any:
        global _running
        _running = flags
        many = next((key for key in arguments if flags[key].is_repeatable), None)
        for index, key in enumerate(arguments):
            if key == many:
                values[key] = list(given[index:])
            elif index < len(given) and given[index] is not None:
                values[key] = given[index]
        fields_of: dict[str, dict[str, Any]] = {name: {} for name in configs}
        own: dict[str, Any] = {}
        for name, value in values.items():
            key = name.removesuffix("_")
            if flags[key].option.combine is not None:
                (value,) = value
            for parameter, field in flags[key].targets:
                (fields_of[parameter] if field else own)[field or parameter] = value
        built = {name: configs[name](**fields_of[name]) for name in configs}
        return function(**own, **built)

    functools.update_wrapper(run, function)
    del run.__wrapped__  # type: ignore[attr-defined]
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    run.__doc__, _, run.examples = text.partition("\n\nExamples:\n\n")  # type: ignore[attr-defined]
    # What cyclopts reads.
    parameters = [flag.parameter(lambda text: name_flags(text, flags)) for flag in flags.values()]
    parameters.sort(key=lambda each: each.kind)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.flags = flags  # type: ignore[attr-defined]
    return run


def flags_of(run: Command) -> Mapping[str, Flag]:
    """The options and arguments of a command by their keys; of cyclopts' own commands none."""
    flags: Mapping[str, Flag] = getattr(run, "flags", {})
    return flags


def examples_of(run: Command) -> str:
    """The command lines under `Examples:` in the docstring of a command."""
    found: str = run.examples  # type: ignore[attr-defined]
    return found.replace("\n\n", "\n")


@cache
def find_command(path: str) -> Command:
    """Find a command by the words after `ludus`: `find_command("train grpo")`."""
    module = next(section[path][0] for section in SECTIONS.values() if path in section)
    found = vars(import_module(f"ludus.cli.commands.{module}"))
    words = path.replace("-", "_").split()
    run: Command = found.get(f"{'_'.join(words)}_command") or found[f"{words[-1]}_command"]
    return run


def run_with_table(path: str, values: Mapping[str, object], source: str) -> None:
    """Run a command with the values of a TOML table, `source`, instead of flags.

    If it raises, `name_flags` knows its options, and otherwise the caller's options.
    """
    global _running
    caller, run = _running, find_command(path)

    def fill(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        global _running
        _running = flags_of(run)
        fill_options(_by_key(arguments), values, source)

    app = App(
        default_command=run,
        config=(fill,),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    try:
        app([])
    except SystemExit:
        _running = caller
        raise
    _running = caller


def name_flags(message: str, flags: Mapping[str, Flag] | None = None) -> str:
    """Replace names in backticks by flags, by default the flags of the running command.

    `steps` is --steps, `lora.rank` is --lora rank, `resume=False` is --no-resume, and `to="dpo"` is
    --to dpo.
    """
    flags = _running if flags is None else flags
    known = {field or name: flag for flag in flags.values() for name, field in flag.targets}
    known |= flags

    def translate(match: re.Match[str]) -> str:
        path, value = match[1], match[2]
        first, _, rest = path.partition(".")
        for name, setting in ((path, ""), (path.rpartition(".")[2], ""), (first, f" {rest}")):
            if name in known:
                flag = known[name].name + setting
                if value == "False":
                    return f"--no-{flag[2:]}"
                return flag if value in (None, "True") else f"{flag} {value}".replace('"', "")
        return match[0]

    return _ARGUMENT.sub(translate, message)


def name_command_flags(message: str, command: Sequence[str]) -> str:
    """Replace names in backticks by the flags of a command that need not run."""
    return name_flags(message, flags_of(find_command(" ".join(command))))


def describe_usage_error(error: CycloptsError) -> str:
    """Describe in one line what is wrong with a command line."""
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.keyword or error.argument.name
        if error.keyword:
            return f"{name} needs a value."
        command = " ".join(("ludus", *(error.command_chain or ())))
        return f"{name} is missing. `{command} --help` says what it is."
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"Unexpected argument: {' '.join(error.unused_tokens)}."
    return " ".join(str(error).split())


def _by_key(arguments: ArgumentCollection) -> dict[str, Argument]:
    return {argument.field_info.name.removesuffix("_"): argument for argument in arguments}


def apply_settings(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Set flags to the values of `--set` and of the file of `--config`."""
    global _running
    _running = flags_of(app.default_command) if app.default_command else {}
    known = _by_key(arguments)
    if (settings := known.get(SET)) is not None:
        rest = []
        for token in settings.tokens:
            key, equals, value = token.value.partition("=")
            key = key.strip().replace("-", "_")
            if equals and key in known and key not in (SET, CONFIG):
                known[key].append(Token(keyword=key, value=value, source=f"--set {key}"))
            else:
                rest.append(token)
        settings.tokens[:] = rest
    for token in known[CONFIG].tokens[-1:] if CONFIG in known else ():
        fill_options(known, read_table(token.value), f"--config {token.value}")


def read_table(name: str) -> JsonObject:
    """Read the TOML file of `--config`."""
    from ludus.data.json_files import read_text

    try:
        return tomllib.loads(read_text(Path(name).expanduser()))
    except OSError as error:
        raise ConfigError(f"--config {name} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"--config {name} is not valid TOML: {error}") from None


def fill_options(known: Mapping[str, Argument], values: Mapping[str, object], source: str) -> None:
    """Give options that have no value yet the values of a TOML table."""
    for key, value in values.items():
        if key not in known or key == CONFIG:
            hint = did_you_mean(key, known, f"{HELP_ALL} lists them.")
            raise ConfigError(f"{source} has no option {key!r}. {hint}")
        if not known[key].tokens:
            for text in _running[key].texts(value):
                known[key].append(Token(keyword=key, value=text, source=source))


def to_texts(value: object) -> list[str]:
    """Format the values of a repeatable flag; a table as KEY=VALUE if that parses to the same."""
    if isinstance(value, list):
        return [text for item in value for text in to_texts(item)]
    if isinstance(value, Mapping):
        texts = [f"{key}={to_text(item)}" for key, item in value.items()]
        # In JSON if it has a text such as "5", or a comma, which separates settings.
        if "," not in "".join(texts) and options.parse_assignments(texts) == value:
            return texts
    return [to_text(value)]


def to_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float | Path):
        return str(value)
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    raise ConfigError(f"{value!r} is neither a text, a number, true, false nor a table.")


def refuse_settings(texts: Sequence[str]) -> None:
    """Raise for a setting that no option of the command took."""
    for text in texts:
        key, equals, _ = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not KEY=VALUE")
        hint = did_you_mean(key, _running, f"{HELP_ALL} lists the common ones.")
        raise ValueError(f"the command has no setting {key!r}. {hint}")


def _flags(function: Command) -> Iterator[Flag]:
    found: dict[str, Flag] = {}
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        each = []
        if is_dataclass(hint):
            config = hint if isinstance(hint, type) else type(hint)
            types, texts = get_type_hints(config, include_extras=True), field_texts(config)
            for field in fields(config):
                if (option := _option_of(of := types[field.name])) is None:
                    continue
                default = field.default
                if field.default_factory is not MISSING:
                    default = field.default_factory()
                text, target = texts.get(field.name) or _text_of(of), (name, field.name)
                key = option.name or field.name
                each.append(Flag(key, get_args(of)[0], option, text, default, (target,)))
        else:
            default = MISSING if parameter.default is parameter.empty else parameter.default
            positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            option = _option_of(hint)
            assert option is not None, f"{name} has no Option"
            key, text, target = option.name or name, _text_of(hint), (name, "")
            each.append(Flag(key, get_args(hint)[0], option, text, default, (target,), positional))
        for flag in each:
            if (before := found.get(flag.key)) is not None:
                # Two configs of the command have the field: the option sets both.
                flag = replace(before, targets=(*before.targets, *flag.targets))
            found[flag.key] = flag
    return iter(found.values())


def _option_of(hint: Any) -> Option | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((each for each in get_args(hint)[1:] if isinstance(each, Option)), None)


def _text_of(hint: Any) -> str:
    """The help beside the option in an annotation."""
    return next((each for each in get_args(hint)[1:] if isinstance(each, str)), "")


@cache
def field_texts(config: type) -> dict[str, str]:
    """The help of flags: the docstrings of the fields of a config and of its base classes."""
    texts: dict[str, str] = {}
    for each in reversed(config.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        for line, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                text = after.value if isinstance(after, ast.Expr) else None
                texts[line.target.id] = " ".join(str(getattr(text, "value", "")).split())
    return texts
