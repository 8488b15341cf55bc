"""Frozen records as command lines: a field is an option, its docstring the help, its constraints the check.

A record may hold others; on a command line, and in a flat dict, all their fields stand side by side. Names are unique.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import re
import shlex
import statistics
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from kernels.spec import Frozen

EXIT_USAGE = 2


@dataclass(frozen=True)
class Option:
    """How a field stands on a command line, where its name and its type do not say it."""

    metavar: str = ""
    name: str = ""
    """The option's name without dashes; by default the field's."""
    positional: bool = False
    group: str = ""
    """Heading in the help; a nested record's holds for all of its fields."""
    const: Any = None
    """The value of an option that is given without one."""
    choices: tuple[str, ...] = ()
    together: bool = False
    """All values behind one option, rather than one behind each."""
    every: bool = False
    """Whether one value may be given for all keys of a dict, too."""
    hidden: bool = False
    """Whether the option is taken but not in the help."""
    absent: bool = False
    """No option."""
    only: tuple[str, ...] = ()
    """Fields of a nested record that are options here, where not all are."""
    without: tuple[str, ...] = ()
    """Fields of a nested record that are no options here."""
    unlisted: tuple[str, ...] = ()
    """Fields of a nested record whose options are taken but not in the help."""
    usual: str = ""
    """Default as the help says it, where it is not the field's value."""


def _whole(text: str) -> str:
    return str(Path(text).resolve()) if text else ""


def whole_path() -> AfterValidator:
    """For the text of a path that has to hold in another working folder, too; "" stays."""
    return AfterValidator(_whole)


@dataclass(frozen=True)
class OptionLeaf:
    """One field of a record or of one within it."""

    path: tuple[str, ...]
    info: FieldInfo
    option: Option
    default: Any
    type: Any = field(init=False)
    """The field's type without None; the type of its values for a tuple or a dict."""
    many: bool = field(init=False)
    keys: tuple[str, ...] = field(init=False)
    """Keys of a dict whose keys are a Literal."""

    def __post_init__(self) -> None:
        inner = _without_none(self.info.annotation)
        origin, arguments = get_origin(inner), get_args(inner)
        keys = get_args(arguments[0]) if origin is dict else ()
        inner = arguments[1] if origin is dict else arguments[0] if origin is tuple else inner
        for name, value in (("type", inner), ("many", origin is tuple), ("keys", keys)):
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """The option's, as an attribute."""
        return (self.option.name or self.path[-1]).replace("-", "_")

    @property
    def help(self) -> str:
        words = " ".join((self.info.description or "").split())
        words = words if words.endswith("...") else words.removesuffix(".")
        words = words[:1].lower() + words[1:] if re.match(r"[A-Z]([a-z]*\b|\b)", words) else words
        default = self.option.usual or self.default
        shown = self.type is not bool and isinstance(default, str | int | float | Path) and str(default)
        if shown and not words.endswith(")"):
            words = f"{words} ({f'{default:g}' if isinstance(default, float) else default})".strip()
        return words.replace("%", "%%")

    def value_in(self, record: Frozen) -> Any:
        """None where nobody gave one."""
        for name in self.path[:-1]:
            if name not in record.model_fields_set:
                return None
            record = getattr(record, name)
        return getattr(record, self.path[-1]) if self.path[-1] in record.model_fields_set else None


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(one for one in get_args(annotation) if one is not type(None))
    return annotation


@functools.cache
def leaves(record: type[Frozen]) -> tuple[OptionLeaf, ...]:
    """The required ones first; a record's own fields before those of its bases."""
    found = tuple(sorted(_leaves(record), key=lambda leaf: not leaf.info.is_required()))
    names = [
        name
        for leaf in found
        for name in {leaf.path[-1], *([] if leaf.keys and not leaf.option.every else [leaf.name])}
    ]
    if twice := {name for name in names if names.count(name) > 1}:
        raise TypeError(f"{record.__name__} has two fields of the name {', '.join(sorted(twice))}")
    return found


def _leaves(record: type[Frozen], held: Frozen | None = None) -> Iterator[OptionLeaf]:
    """`held`: the record that is there where nobody gives one, whose values are the defaults."""
    bases = [base for base in record.__mro__ if issubclass(base, Frozen)]
    order = dict.fromkeys(name for base in bases for name in inspect.get_annotations(base))
    for name in (name for name in order if name in record.model_fields):
        info = record.model_fields[name]
        again = [
            base.model_fields[name] for base in bases if name in base.model_fields
        ]  # what one redefines says no more
        option = next((one for field in again for one in field.metadata if isinstance(one, Option)), Option())
        if info.description is None:
            info.description = next((field.description for field in again if field.description), None)
        if option.absent:
            continue
        default = info.default if held is None else getattr(held, name)
        inner = _without_none(info.annotation)
        if not (isinstance(inner, type) and issubclass(inner, Frozen)):
            yield OptionLeaf((name,), info, option, default)
            continue
        for leaf in _leaves(inner, default if isinstance(default, Frozen) else None):
            last, own = leaf.path[-1], leaf.option
            if (option.only and last not in option.only) or last in option.without:
                continue
            hidden = own.hidden or last in option.unlisted
            own = replace(own, group=option.group or own.group, usual=option.usual or own.usual, hidden=hidden)
            yield replace(leaf, path=(name, *leaf.path), option=own)


class Options(Frozen):
    """Base of such records. A nested field may be given beside the others, by its own name or its option's."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _nested(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        nested = {name: value for name, value in values.items() if name in cls.model_fields}
        apart = {name: value for name, value in values.items() if name not in cls.model_fields}
        for leaf in leaves(cls):
            for name in {leaf.path[-1], leaf.path[-1] if leaf.keys and not leaf.option.every else leaf.name} & set(
                apart
            ):
                value = apart.pop(name)
                if leaf.option.every and not isinstance(value, dict):
                    value = dict.fromkeys(leaf.keys, value)
                cls._put(nested, leaf.path, value)
            for key in leaf.keys:
                if f"{leaf.name}_{key}" in apart:
                    cls._put(nested, (*leaf.path, key), apart.pop(f"{leaf.name}_{key}"))
        return nested | apart

    @classmethod
    def _put(cls, values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
        """Into records within `values`, of which some are dicts yet."""
        held = values.get(path[0], cls.model_fields[path[0]].default)
        for name in path[:-1]:
            values[name] = values = _as_dict(held)
            held = values.get(path[path.index(name) + 1])
        values[path[-1]] = value

    def with_(self, **values: Any) -> Self:
        """A copy with other values, checked; a nested field is named without its record."""
        return type(self).model_validate(_as_dict(self) | values)


def _as_dict(held: Any) -> dict[str, Any]:
    """What somebody gave of it."""
    if isinstance(held, Frozen):
        return {name: getattr(held, name) for name in held.model_fields_set}
    return dict(held) if isinstance(held, dict) else {}


Given = TypeVar("Given", bound=Options)


def list_given(record: Frozen) -> dict[str, Any]:
    """The fields that somebody gave a value, by their own names, those of nested records among them."""
    values = {leaf.path[-1]: leaf.value_in(record) for leaf in leaves(type(record))}
    return {name: value for name, value in values.items() if value is not None}


def words(record: Frozen, leave_out: Iterable[str] = ()) -> list[str]:
    """The command line that gives the same record."""
    said: list[str] = []
    for leaf in sorted(leaves(type(record)), key=lambda leaf: not leaf.option.positional):
        value = leaf.value_in(record)
        if value is None or value is False or leaf.name in leave_out:
            continue
        name = f"--{leaf.name.replace('_', '-')}"
        if leaf.option.positional:
            said += map(str, value if leaf.many else [value])
        elif value is True or (leaf.option.const is not None and value == leaf.option.const):
            said.append(name)
        elif leaf.keys:
            usual = statistics.mode(value.values()) if leaf.option.every and len(value) == len(leaf.keys) else None
            said += [] if usual is None else [name, str(usual)]
            said += [word for key in value if value[key] != usual for word in (f"{name}-{key}", str(value[key]))]
        elif leaf.option.together:
            said += [name, *map(str, value)]
        else:
            said += [word for one in (value if leaf.many else [value]) for word in (name, str(one))]
    return said


def program() -> str:
    """This interpreter and this checkout's run.py, as they are typed in the working folder: `.venv/bin/python run.py`."""
    typed = []
    for path in (Path(sys.executable), Path(__file__).resolve().parents[1] / "run.py"):
        typed.append(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
    return shlex.join(typed)


def command_line(record: Frozen, command: str = "", leave_out: Iterable[str] = ()) -> str:
    return shlex.join(["python", "run.py", *([command] if command else []), *words(record, leave_out)])


# --- argparse --------------------------------------------------------------------------------------------------------


HELP_FROM = 30
"""Column at which an option's help may begin at most; one whose name is longer has its help on the next line."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def __init__(self, prog: str, usage: str | None = None, description: str = "", epilog: str = "") -> None:
        formatter = argparse.RawDescriptionHelpFormatter if epilog else argparse.HelpFormatter
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog or None,
            formatter_class=functools.partial(formatter, max_help_position=HELP_FROM),
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def number(kind: type, least: float, most: float = float("inf"), *, above: bool = False) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not (value > least if above else value >= least):
            what = "a whole number" if kind is int else "a number"
            bound = "" if least == float("-inf") else f" {'above' if above else 'of at least'} {least:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}{bound}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {most:,}")
        return value

    return parse


def _reader(leaf: OptionLeaf) -> Callable[[str], Any]:
    if leaf.type not in (int, float):
        return Path if leaf.type is Path else str
    bounds = {
        name: value
        for one in leaf.info.metadata
        for name in ("ge", "gt", "le")
        if (value := getattr(one, name, None)) is not None
    }
    least = bounds.get("gt", bounds.get("ge", float("-inf")))
    return number(leaf.type, least, bounds.get("le", float("inf")), above="gt" in bounds)


def _metavar(leaf: OptionLeaf) -> str:
    usual = "NAME" if leaf.type is str else "FILE" if leaf.type is Path else "N"
    return leaf.name.upper() if leaf.option.positional else "S" if leaf.name.endswith("seconds") else usual


def add_options(parser: argparse.ArgumentParser, record: type[Frozen], every: bool = True) -> None:
    """An option for every field; what nobody gives stays out of the Namespace. Without `every` the help has the names of the
    record's `brief` alone."""
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    brief: tuple[str, ...] = () if every else getattr(record, "brief", ())
    headings: dict[str, tuple[str, ...]] = getattr(record, "headings", {}) if every else {}
    titles = {name: title for title, names in headings.items() for name in names}
    for title in headings:
        groups[title] = parser.add_argument_group(title)
    listed = leaves(record)
    if brief:  # in its order
        listed = tuple(sorted(listed, key=lambda leaf: brief.index(leaf.name) if leaf.name in brief else len(brief)))
    for leaf in listed:
        option = leaf.option
        title = "" if brief else titles.get(leaf.name, option.group)
        if brief and leaf.name not in brief:
            option = replace(option, hidden=True)
        heading, _, description = title.partition("\n")
        target = groups.setdefault(title, groups.get(title) or parser.add_argument_group(heading, description or None))
        more: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS if option.hidden else leaf.help}
        if leaf.type is bool:
            target.add_argument(f"--{leaf.name.replace('_', '-')}", action="store_true", dest=leaf.name, **more)
            continue
        choices = option.choices or (get_args(leaf.type) if get_origin(leaf.type) is Literal else ())
        if choices:
            more["choices"] = choices
        else:
            more |= {"type": _reader(leaf), "metavar": option.metavar or _metavar(leaf)}
        if option.positional:
            nargs = ("+" if leaf.info.is_required() else "*") if leaf.many else None if leaf.info.is_required() else "?"
            if nargs == "?" and choices:  # argparse would hold SUPPRESS against them; the record knows them as well
                more |= {"metavar": f"{{{','.join(map(str, more.pop('choices')))}}}"}
            target.add_argument(leaf.name, nargs=nargs, **more)
            continue
        dashed = f"--{leaf.name.replace('_', '-')}"
        if option.const is not None:
            more |= {"nargs": "?", "const": option.const}
        if leaf.many:
            more |= {"nargs": "+"} if option.together else {"action": "append"}
        if not leaf.keys or option.every:
            target.add_argument(dashed, dest=leaf.name, required=leaf.info.is_required(), **more)
        for key in leaf.keys:
            target.add_argument(f"{dashed}-{key}", dest=f"{leaf.name}_{key}", **more | {"help": argparse.SUPPRESS})


def sentence(error: ValidationError, record: type[Frozen]) -> str:
    """The first thing that is wrong, by its option."""
    first = error.errors(include_url=False)[0]
    place = tuple(name for name in first["loc"] if isinstance(name, str))
    leaf = next((leaf for leaf in leaves(record) if leaf.path == place[: len(leaf.path)]), None)
    said = first["msg"].removeprefix("Value error, ")
    if leaf is None:
        return f"{'.'.join(place)}: {said}".removeprefix(": ")
    return f"argument {leaf.name if leaf.option.positional else '--' + leaf.name.replace('_', '-')}: {said}"


def read(record: type[Given], parser: argparse.ArgumentParser, line: list[str]) -> Given:
    """Leaves with one sentence where a word does not fit."""
    values = vars(parser.parse_args(line))
    try:
        return record.model_validate(values)
    except ValidationError as error:
        parser.error(sentence(error, record))


class _HelpAll(argparse.Action):
    """`--help-all`: prints the help of every option."""

    def __init__(self, record: type[Options], prog: str, **more: Any) -> None:
        self.record, self.prog = record, prog
        super().__init__(nargs=0, default=argparse.SUPPRESS, help="the help of every option", **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser_for(self.record, self.prog, every=True).print_help()
        parser.exit()


def parser_for(record: type[Options], prog: str, *, every: bool = False) -> Parser:
    """With the record's docstring; its class variables may be `usage`, `epilog`, `brief` (names of options: `--help` has these,
    `--help-all` every one) and `headings` (of `--help-all`: names of options by heading)."""
    description = " ".join((record.__doc__ or "").split())
    usage = getattr(record, "usage", None) or _usage(record, prog)
    parser = Parser(prog, usage, description, "" if every else getattr(record, "epilog", ""))
    if getattr(record, "brief", ()):
        parser.add_argument("--help-all", action=_HelpAll, record=record, prog=prog)
    add_options(parser, record, every or not getattr(record, "brief", ()))
    return parser


def _usage(record: type[Options], prog: str) -> str:
    """What must be given, and that there are options: what argparse makes of thirty of them is a third of a screen."""
    said = [prog]
    for leaf in leaves(record):
        needed, metavar = leaf.info.is_required(), leaf.option.metavar or _metavar(leaf)
        if leaf.option.positional:
            shown = "|".join(map(str, leaf.option.choices)) or metavar
            said.append(
                f"{shown}{' ...' if leaf.many else ''}" if needed else f"[{shown}{' ...' if leaf.many else ''}]"
            )
        elif needed:
            said.append(f"--{leaf.name.replace('_', '-')} {metavar}")
    return "\n           ".join(textwrap.wrap(" ".join([*said, "[options]"]), 70, break_on_hyphens=False))


def from_words(record: type[Given], line: Iterable[str]) -> Given:
    """What those words of a command line ask for."""
    return read(record, parser_for(record, "run.py"), list(line))
