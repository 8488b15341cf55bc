"""What must hold of a call beside its tensors, so that the winner is taken only where all is as it was judged: numbers, what the binding writes
into the call, and the numbers of templates."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from harness.cpp import angles, find_definitions, find_templates, split
from harness.export import launcher
from harness.export.dropin import ExportError
from harness.export.launch_header import uncast
from kernels.spec import Scalar, Spec, Tensor

NO_VALUE = re.compile(r"(?:[\w:]+::)?nullopt|\{\}")
COMPARABLE = re.compile(r'"[^"\\]*"|static_cast<[\w:]+>\([\w:]+\)|(?:[\w:]|\s|[+*/().-])+')


@dataclass
class Bound:
    """What `build.binding` names for one dtype: a function of tensors, or a whole call of it."""

    path: list[tuple[str, tuple[str, ...]]]
    """Its namespaces, its struct and itself, each with its template's arguments."""
    arguments: tuple[str, ...] | None
    """Of a whole call."""

    @property
    def function(self) -> str:
        return self.path[-1][0]

    @property
    def scope(self) -> str:
        """What it stands in, "" where nothing is named."""
        return self.path[-2][0] if len(self.path) > 1 else ""


@dataclass
class Guards:
    """Of a host function: which of its parameters is which argument, and what is asked of the others."""

    names: dict[str, str] | None = None
    """Argument of the spec -> parameter, where a whole call says it."""
    conditions: dict[str, list[str]] = field(default_factory=dict)
    """dtype -> conditions in C++; sizes are called as the axes, with an underscore behind."""


def find_bound(spec: Spec) -> dict[str, Bound]:
    """dtype -> what is bound for it. Raises ExportError."""
    found: dict[str, Bound] = {}
    for dtype in spec.dtypes:
        asked = spec.build.binding if isinstance(spec.build.binding, str) else spec.build.binding.get(dtype, "")
        found[dtype] = _parse(asked or spec.entry_name)
    return found


def _parse(text: str) -> Bound:
    path, at, name = list[tuple[str, tuple[str, ...]]](), 0, re.compile(r"\s*(?:::)?\s*(\w+)")
    while found := name.match(text, at):
        at, templates = found.end(), tuple[str, ...]()
        if text[at : at + 1] == "<" and (length := angles(text, at)):
            templates, at = tuple(split(text[at + 1 : at + length - 1])), at + length
        path.append((found[1], templates))
        if not text.startswith("::", at):
            break
    call = re.fullmatch(r"\s*\((.*)\)\s*;?\s*", text[at:], re.DOTALL)
    if not path or (call is None and text[at:].strip()):
        raise ExportError(f"build.binding: {text[:80]!r} is neither a function nor a call of one")
    return Bound(path, tuple(split(call[1])) if call else None)


def find_guards(spec: Spec, own: str, function: str, at: int) -> Guards:
    """Of the host function whose name stands at or behind `at` in the text. Raises ExportError."""
    host = next(one for one in find_definitions(own, function) if one.start >= at)
    templates = {**find_templates(own, host.start), function: list(host.template)}
    made = Guards()
    for dtype, bound in find_bound(spec).items():
        asked = made.conditions.setdefault(dtype, [])
        for name, values in bound.path:
            asked += _numbers_of(templates.get(name, []), values)
        if bound.arguments is None or any(tensor.in_list for tensor in spec.tensors):
            continue
        values = (*bound.arguments, *(one.default for one in host.parameters[len(bound.arguments) :]))
        given = {one.name: text for one, text in zip(host.parameters, values, strict=True)}
        known = {argument.name for argument in spec.arguments}
        here = {bare: name for name, text in given.items() if (bare := uncast(text)[0]) in known}
        if made.names is not None and here != made.names:
            raise ExportError("build.binding gives the dtypes' calls their arguments in different orders")
        made.names = here
        asked += [_compared(spec, name, text, here) for name, text in given.items() if name not in here.values()]
    return made


def _numbers_of(parameters: list[str], values: tuple[str, ...]) -> list[str]:
    """What must hold of a template's numbers. Its types are what the tensors' dtypes are; how it is launched changes no value."""
    asked = []
    for place, parameter in enumerate(parameters if values else []):
        declared, _, default = parameter.partition("=")
        name, value = (
            declared.replace("...", " ").split()[-1],
            values[place] if place < len(values) else default.strip(),
        )
        is_type = re.match(r"\s*(typename|class|template)\b", parameter)
        if not is_type and "pdl" not in name.lower() and re.fullmatch(r"[\w:]+", value) and value != name:
            asked.append(f"{name} == {value}")
    return asked


def _compared(spec: Spec, name: str, text: str, names: dict[str, str]) -> str:
    """That a parameter is what the binding has in its place. Raises ExportError."""
    if NO_VALUE.fullmatch(text):
        return f"!{name}.has_value()"
    if text.startswith("{"):
        entries = split(text[1:-1])
        each = [_compared(spec, f"{name}[{at}]", entry, names) for at, entry in enumerate(entries)]
        return " && ".join([f"{name}.size() == {len(entries)}", *each])
    if not COMPARABLE.fullmatch(text):
        raise ExportError(f"an argument of what is bound, {text[:60]}, is nothing that can be compared")
    kinds = {a.name: a for a in spec.arguments}

    def renamed(word: re.Match[str]) -> str:
        if word[0] in spec.axes:
            return f"{word[0]}_"
        if isinstance(kinds.get(word[0]), Scalar | Tensor) and word[0] in names:
            return names[word[0]]
        return word[0]

    value = text if text.startswith('"') else re.sub(r"(?<![\w.:])[A-Za-z_]\w*(?!\w*::)", renamed, text)
    return f"{name} == {value}"


def find_judged_numbers(spec: Spec, winner: str, names: dict[str, str]) -> list[str]:
    """What must hold of the host function's numbers."""
    found = []
    for one in spec.arguments:
        if isinstance(one, Scalar) and one.ctype != "void*" and one.name in names and launcher.decides(one, winner):
            exact = str(int(one.value)) if one.ctype == "int64_t" else repr(one.value)
            found.append(f"static_cast<{one.ctype}>({names[one.name]}) == static_cast<{one.ctype}>({exact})")
    return found
