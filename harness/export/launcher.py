"""A plain C winner called where a file launches its own kernel: inside the launcher that `build.binding` calls, or at the kernel's launches.

The text of CUDA and C++ is looked at by brackets alone; what is not understood so is refused, one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.backends import C_TYPES, HOST_TYPES
from harness.cpp import (
    CLOSING,
    OPENING,
    FunctionDefinition,
    angles,
    closing,
    find_defaults,
    find_definitions,
    mask,
    split,
    statement_head,
)
from harness.export.dropin import ExportError
from harness.export.launch_header import POINTS_TO, Argument, Replaced, launch_template, space, uncast
from kernels.spec import Scalar, Spec

Line = Callable[[str], str]
"""A call of the winner's -> the line that makes it."""
_STATUS = ("cudaError_t", "cudaError")
_CONTROL = re.compile(
    r"\s*(?:(?:if\s*(?:constexpr\s*)?|for|while|switch)\s*(?=\()|else\b|do\b|default\s*:|case\b[^:;]*:)"
)


@dataclass(frozen=True)
class LauncherCall:
    """A call of a function or a launch of a kernel, in words of the source."""

    name: str
    """As it stands, with namespaces: `far_away::twice_of`."""
    templates: tuple[str, ...]
    launch: tuple[str, ...]
    """What stands in <<< >>>: grid, block, shared memory, stream; () of a call."""
    arguments: tuple[str, ...]

    @property
    def function(self) -> str:
        return self.name.rpartition("::")[2]


def decides(scalar: Scalar, winner: str) -> bool:
    """Whether a winner is right only for the value that was judged: a mode or a flag, or a number that its text does not use."""
    return scalar.ctype == "int64_t" or not re.search(
        rf"\b{scalar.name}\b", re.sub(r"\bvoid\s+\w+\s*\([^()]*\)", "", winner)
    )


def parse_call(text: str) -> LauncherCall:
    """Of one call that is the whole text. Raises ExportError."""
    found = re.match(r"\s*([\w:]+)\s*", text)
    if found is None:
        raise ExportError(f"build.binding: {text[:80]!r} is no call")
    at, templates, launch = found.end(), tuple[str, ...](), tuple[str, ...]()
    if text[at : at + 1] == "<" and text[at : at + 3] != "<<<":
        length = angles(text, at)
        templates = tuple(split(text[at + 1 : at + length - 1]))
        at += length
    if text[at : at + 3] == "<<<":
        end = text.index(">>>", at)
        launch = tuple(split(text[at + 3 : end]))
        at = end + 3
    inside = re.match(r"\s*\((.*)\)\s*;?\s*$", text[at:], re.DOTALL)
    if inside is None:
        raise ExportError(f"build.binding: {text[:80]!r} is no call with its arguments")
    return LauncherCall(found[1], templates, launch, tuple(split(inside[1])))


def calls(spec: Spec, device: str) -> dict[str, LauncherCall]:
    """dtype -> what `build.binding` calls for it; without one the entry that the source itself has."""
    names = [a.name for a in spec.arguments] + (["stream"] if device == "cuda" else [])
    found = dict[str, LauncherCall]()
    for dtype in spec.dtypes:
        asked = spec.build.binding if isinstance(spec.build.binding, str) else spec.build.binding.get(dtype, "")
        text = asked or spec.entry_names(dtype)[0]
        found[dtype] = parse_call(text if text.endswith(")") else f"{text}({', '.join(names)})")
    return found


def find_exported(own: str) -> set[str]:
    """Functions at a file's top level, or in a namespace, that others may call."""
    text, inner, found = mask(own), list[bool](), set[str]()
    for match in re.finditer(r"[{}]|(\w+)\s*\(", text):
        if match[0] == "{":
            inner.append(re.search(r"\b(extern|namespace)\b[^;{}()]*$", text[: match.start()]) is None)
        elif match[0] == "}":
            inner = inner[:-1]
        elif not any(inner):
            defined = [
                one for one in find_definitions(own, match[1]) if one.start == match.start() and not one.template
            ]
            if defined and not re.search(r"\b(static|__global__|__device__|inline)\b", defined[0].head):
                found.add(match[1])
    return found


def with_call(
    spec: Spec, own: str, winner: str, device: str, header: str, headers: Iterable[str] = ()
) -> tuple[str, str] | None:
    """(the text with the call of the winner, C++ that the header has for it); None where the text defines nothing that is bound.
    headers: texts that may declare the launcher, with defaults.

    Raises ExportError where it does, and the call cannot be put there.
    """
    bound = calls(spec, device)
    by_function: dict[str, dict[str, LauncherCall]] = {}
    for dtype, call in bound.items():
        by_function.setdefault(call.function, {})[dtype] = call
    text, made = own, []
    for function, some in by_function.items():
        name = "launched" if len(by_function) == 1 else f"launched_{function}"
        defaults = next(filter(None, (find_defaults(one, function) for one in headers)), ())
        if (found := _with_one(spec, text, winner, device, some, name, defaults)) is None:
            return None
        text = found[0]
        made.append(found[1])
        if spec.build.language == "c":
            text = text.replace(f"::{space(spec)}::{name}(", f"{space(spec)}_{name}(")
    return with_include(text, f'#include "{header}"\n'), "\n".join([POINTS_TO, *made])


def _with_one(
    spec: Spec,
    own: str,
    winner: str,
    device: str,
    bound: dict[str, LauncherCall],
    name: str,
    defaults: tuple[str, ...] = (),
) -> tuple[str, str] | None:
    """`with_call` of the dtypes that one function is bound for; without the include."""
    text, function = mask(own), next(iter(bound.values())).function
    defined = [one.with_defaults(defaults) for one in find_definitions(own, function)]
    scope = next(iter(bound.values())).name.split("::")[-2:-1]
    if len(defined) > 1 and scope:
        defined = [one for one in defined if scope[0] in one.scopes] or defined
    kernels = [one for one in defined if one.is_kernel]
    if any(call.launch for call in bound.values()):
        places = _launches(spec, text, bound, kernels, name)
    else:
        if not defined:
            return None
        fitting = [one for one in defined if _takes(one, len(next(iter(bound.values())).arguments))]
        if len(fitting) > 1 and len(bound) == 1:  # specialisations of a template
            own_type = C_TYPES[next(iter(bound))].removeprefix("__")
            kinds = [" ".join(parameter.type for parameter in one.parameters) for one in fitting]
            fitting = [
                one for one, kind in zip(fitting, kinds, strict=True) if re.search(rf"\b(__)?{own_type}\b", kind)
            ]
        if len(fitting) != 1:
            raise ExportError(
                f"{len(fitting)} functions {function} take {len(next(iter(bound.values())).arguments)} arguments, and one is to call the winner"
            )
        places = [_inside(spec, own, fitting[0], bound, name)]
    if not places:
        return None
    shape = {
        (tuple(tuple(a.bound.items()) for a in p.arguments), tuple(tuple(t.bound.items()) for t in p.types))
        for p in places
    }
    if len(shape) > 1:
        raise ExportError(
            f"{function} is launched in several places with different arguments: bind the function that launches it"
        )
    made = launch_template(spec, winner, places[0], function, device, name)
    for place in sorted(places, key=lambda one: -one.at):
        start = own.rfind("\n", 0, place.at) + 1
        indent = re.match(r"[ \t]*", own[start:])
        deep = indent[0] if indent else ""
        if own[place.at - 1 : place.at] in ("{", "\n") or own[start : place.at].strip().endswith("{"):
            rest = re.compile(r"[ \t]*(//[^\n]*)?\n").match(own, place.at)
            cut = rest.end() if rest else place.at
            inner = re.match(r"[ \t]*", own[cut:]) if rest else None
            line = f"{inner[0] if inner and inner[0] else deep + '    '}{place.line}\n"
            own = f"{own[:cut]}{line if rest else chr(10) + line}{own[cut:]}"
        elif not own[start : place.at].strip():
            own = f"{own[:start]}{deep}{place.line}\n{own[start:]}"
        else:
            own = f"{own[: place.at]}{place.line}\n{deep}{own[place.at :]}"
    return own, made


def for_c(spec: Spec, own: str) -> list[tuple[str, str]]:
    """(declaration, body in C++) of each function by which a C file calls the winner: pointers as void*, numbers as the file's own function takes
    them. Raises ExportError."""
    found = []
    for dtype, call in calls(spec, "cpu").items():
        (function,) = [one for one in find_definitions(own, call.function) if _takes(one, len(call.arguments))]
        parameters, given = [], []
        for at, (one, text) in enumerate(zip(function.parameters, call.arguments, strict=False)):
            tensor = next((t for t in spec.tensors if t.name == uncast(text)[0]), None)
            if tensor is not None:
                parameters.append(f"const void* a{at}")
                given.append(
                    f"static_cast<{HOST_TYPES[dtype if tensor.dtype == 'T' else tensor.dtype]}*>(const_cast<void*>(a{at}))"
                )
            elif "*" in one.type:
                parameters.append(f"const void* a{at}")
                given.append(f"a{at}")
            elif re.fullmatch(
                r"(const |unsigned |signed )*(u?int\d*(_t)?|size_t|long|short|float|double)( long)?( int)?",
                one.type.strip(),
            ):
                parameters.append(f"{one.type.strip()} a{at}")
                given.append(f"a{at}")
            else:
                raise ExportError(f"{one.type} {one.name} is no number that a C file hands to one of C++")
        name = f"{space(spec)}_launched"
        found.append(
            (f"int {name}({', '.join(parameters)})", f"{{ return {space(spec)}::launched({', '.join(given)}); }}")
        )
    if len(found) > 1:
        raise ExportError("a function of C is bound for several dtypes, and its pointers do not tell them")
    return found


def with_include(own: str, lines: str, before: int | None = None) -> str:
    """The text with these lines behind the last include that is not within a condition of its own. before: place in the text that they must precede."""
    depth, found = 0, []
    for line in re.finditer(r"^[ \t]*#[ \t]*(\w+)[^\n]*\n?", own[:before], re.MULTILINE):
        depth += (line[1] in ("if", "ifdef", "ifndef")) - (line[1] == "endif")
        if line[1] == "include":
            found.append((depth, line.end()))
    least = min((deep for deep, _ in found), default=0)
    at = max((end for deep, end in found if deep == least), default=0)
    if not found and (
        guard := re.match(r"(?:\s|//[^\n]*\n|/\*.*?\*/)*#[ \t]*pragma[ \t]+once[^\n]*\n", own, re.DOTALL)
    ):
        at = guard.end()
    return f"{own[:at]}{lines}{own[at:]}"


def _takes(function: FunctionDefinition, count: int) -> bool:
    needed = sum(not one.default for one in function.parameters)
    return needed <= count <= len(function.parameters)


def _inside(spec: Spec, own: str, function: FunctionDefinition, bound: dict[str, LauncherCall], name: str) -> Replaced:
    """The winner first in the launcher's own body."""
    ends = {"void": "return;"} | dict.fromkeys(_STATUS, "return cudaGetLastError();")
    says = set(re.findall(r"\breturn\b([^;]*);", own[function.body : function.end]))
    if {" true"} <= says <= {" true", " false"}:
        ends["bool"] = "return true;"  # launched; false is of arguments that it does not take
    if function.returns not in ends:
        raise ExportError(
            f"its launcher returns {function.returns or 'something'}: only one that returns nothing, a cudaError_t, or true where it has launched, is patched"
        )
    if unnamed := [str(at + 1) for at, one in enumerate(function.parameters) if not one.name]:
        raise ExportError(f"its launcher gives no name to its parameter {', '.join(unnamed)}")
    given = len(next(iter(bound.values())).arguments)
    arguments = [
        Argument(
            one.name, {d: call.arguments[at] if at < given else one.default for d, call in bound.items()}, one.type
        )
        for at, one in enumerate(function.parameters)
    ]
    returned = ends[function.returns]
    launched = f"{space(spec)}::{name}"
    return _replaced(
        bound, arguments, function.template_names, function.body, lambda call: f"if ({call}) {returned}", launched
    )


def _replaced(
    bound: dict[str, LauncherCall], arguments: list[Argument], templates: list[str], at: int, line: Line, launched: str
) -> Replaced:
    arguments, types = list(arguments), []
    for place, name in enumerate(templates):
        texts = {dtype: call.templates[place] for dtype, call in bound.items() if place < len(call.templates)}
        if not texts or all(text == name for text in texts.values()):
            continue
        if all(re.fullmatch(r"[\d]+|true|false", text) for text in texts.values()):
            arguments.append(Argument(name, texts))
        else:
            types.append(Argument(name, texts))
    asked = f"<{', '.join(one.here for one in types)}>" if types else ""
    call = f"::{launched}{asked}({', '.join(one.here for one in arguments)})"
    return Replaced(line(call), at, arguments, types)


def _launches(
    spec: Spec, text: str, bound: dict[str, LauncherCall], kernels: list[FunctionDefinition], name: str
) -> list[Replaced]:
    """Each launch of the kernel in that text that is the binding's. Raises ExportError where there are some and none can be read."""
    first = next(iter(bound.values()))
    whole = [f for f in kernels if _takes(f, len(first.arguments))]
    places, why = [], ""
    for match in re.finditer(rf"(?:[\w]+::)*\b{re.escape(first.function)}\b", text):
        if any(f.start <= match.start() < f.end for f in kernels):
            continue
        at, templates = match.end(), []
        if text[at : at + 1] == "<" and text[at : at + 3] != "<<<":
            length = angles(text, at)
            if not length:
                continue
            templates = split(text[at + 1 : at + length - 1])
            at += length
        try:
            found = _launch(text, match.start(), at, whole, len(first.arguments))
            if found is None or _other(templates, first.templates):
                continue
            start, given, grid, stream, line = found
            arguments = _matched(bound, given, whole)
            if not grid:
                raise ExportError("the launch's grid, which says how much of its tensors it is to do, is not found")
            arguments.append(Argument(f"dim3({grid})", {d: f"dim3({c.launch[0]})" for d, c in bound.items()}))
            arguments.append(Argument(stream, dict.fromkeys(bound, "stream")))
            here = [
                t if not re.fullmatch(r"\d+|true|false", t) else b
                for t, b in zip(templates, first.templates, strict=False)
            ]
            places.append(_replaced(bound, arguments, here, start, line, f"{space(spec)}::{name}"))
        except ExportError as error:
            why = str(error)
    if not places and why:
        raise ExportError(
            f"{first.function} is launched in a way that is not read: {why}; bind the function that launches it (build.binding)"
        )
    return places


def _other(here: list[str], bound: tuple[str, ...]) -> bool:
    """Whether a number among the template's arguments is another one than the binding's: another kernel."""
    numbers = r"\d+|true|false"
    return any(
        re.fullmatch(numbers, a) and re.fullmatch(numbers, b) and a != b for a, b in zip(here, bound, strict=False)
    )


def _launch(
    text: str, first: int, at: int, kernels: list[FunctionDefinition], count: int
) -> tuple[int, list[str], str, str, Line] | None:
    """(start of the statement, the kernel's arguments, grid, stream, how a line before it begins) of a launch; None for what is none."""
    if text[at : at + 3] == "<<<":
        end = text.index(">>>", at)
        shape = split(text[at + 3 : end])
        begin = re.match(r"\s*\(", text[end + 3 :])
        if begin is None:
            return None
        last = closing(text, end + 2 + begin.end())
        given = split(text[end + 3 + begin.end() : last])
        stream = shape[3] if len(shape) > 3 else "cudaStream_t(0)"
        start, line = _statement(text, first)
        return start, given, shape[0], stream, line
    opened = _opening(text, first)
    if opened < 0:
        return None
    inside = text[opened + 1 : closing(text, opened)]
    parts = split(inside)
    mine = next((n for n, part in enumerate(parts) if re.match(rf"&?\s*{re.escape(text[first:at])}\s*$", part)), -1)
    if mine < 0:
        return None
    behind = parts[mine + 1 :]
    most = max((len(k.parameters) for k in kernels), default=count)
    extra = max(0, len(behind) - most) if len(behind) > count else 0
    grid = stream = ""
    before = parts[:mine] + behind[:extra]
    chained = text[:opened].rstrip()
    if not before and chained.endswith(")"):  # launcher(grid, block, stream)(kernel, ...)
        before = split(text[_backwards(chained) + 1 : len(chained) - 1])
    for one in before:
        config = one.lstrip("&").strip()
        if one.startswith("&") and re.search(rf"\bcudaLaunchConfig_t\s+{re.escape(config)}\b", text[:first]):
            grid, stream = f"{config}.gridDim", f"{config}.stream"
        elif re.fullmatch(r"\w+", config):
            made = list(re.finditer(rf"\b{config}\b\s*(?:=\s*[\w:]*\s*)?([({{])", text[:first]))
            if made and len(shape := split(text[made[-1].end() : closing(text, made[-1].end() - 1)])) >= 4:
                grid, stream = shape[0], shape[3]
    if not stream:
        raise ExportError("its launch's stream is not found")
    start, line = _statement(text, first)
    return start, behind[extra:], grid, stream, line


def _opening(text: str, at: int) -> int:
    """Place of the round bracket that `at` is in, -1 where a statement begins before."""
    depth = 0
    for place in range(at - 1, -1, -1):
        if text[place] in ";{}" and depth == 0:
            return -1
        depth += (text[place] in CLOSING) - (text[place] in OPENING)
        if depth < 0:
            return place if text[place] == "(" else -1
    return -1


def _backwards(text: str) -> int:
    """Place of the bracket that the text's last closes."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] in CLOSING) - (text[place] in OPENING)
        if depth == 0:
            return place
    return -1


def _statement(text: str, at: int) -> tuple[int, Line]:
    """(where the statement that `at` is in begins, how a line before it calls the winner). Raises ExportError."""
    place = at
    while (begin := _opening(text, place)) >= 0:
        place = begin
    first = statement_head(text, place)
    while found := _CONTROL.match(text, first):
        first = found.end()
        if text[first : first + 1] == "(":
            first = closing(text, first) + 1
    blank = re.compile(r"\s*").match(text, first)
    first = blank.end() if blank else first
    said = text[first:at]
    if re.match(r"return\b", said):
        return first, lambda call: f"if ({call}) return cudaGetLastError();"
    if re.search(r"(?<![=!<>])=(?!=)", re.sub(r"\([^()]*\)", "", said)):
        raise ExportError("what its launch returns is kept")
    return first, lambda call: f"if (!{call})"


def _matched(bound: dict[str, LauncherCall], given: list[str], kernels: list[FunctionDefinition]) -> list[Argument]:
    """The launch's arguments beside the binding's; those beyond must be the kernel's defaults. Raises ExportError."""
    count = len(next(iter(bound.values())).arguments)
    if len(given) < count:
        raise ExportError(f"it gives {len(given)} arguments, the binding {count}")
    defaults = [one.default for one in kernels[0].parameters] if kernels else []
    for at, text in enumerate(given[count:], count):
        default = defaults[at] if at < len(defaults) else ""
        if re.sub(r"\s", "", text) != re.sub(r"\s", "", default):
            raise ExportError(f"it gives {text[:40]} where the binding gives nothing")
    return [
        Argument(text, {dtype: call.arguments[at] for dtype, call in bound.items()})
        for at, text in enumerate(given[:count])
    ]
