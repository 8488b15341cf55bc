"""What the header has for a launcher that calls a C winner: a function template that launches it where all is as it was judged."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from harness.backends import C_TYPES, HOST_TYPES
from harness.cpp import closing, split
from harness.export.dropin import ExportError
from kernels.spec import Scalar, Size, Spec, Tensor

_CAST = re.compile(
    r"(?:\((?P<c>[\w:<> ]+[\w>]\s*\**)\)|(?:static|reinterpret|const)_cast<(?P<cpp>[^()]*)>)\s*(?P<rest>.+)", re.DOTALL
)
_COMPARED = re.compile(r"[\w\s.+*/%()-]+")
POINTS_TO = """template <typename T, typename Pointer>
constexpr bool points_to = std::is_pointer<Pointer>::value && std::is_same<std::remove_cv_t<std::remove_pointer_t<Pointer>>, T>::value;
"""


@dataclass
class Argument:
    """One that the winner's call is given: an expression at the call, and what the binding has in its place."""

    here: str
    bound: dict[str, str]
    """dtype -> the binding's text."""
    type: str = ""
    """Of the launcher's parameter."""


@dataclass
class Replaced:
    """A place in the user's text at which the winner may go first."""

    line: str
    """`if (...) return;` or `if (!...)`, a line before what stands at `at`."""
    at: int
    arguments: list[Argument] = field(default_factory=list)
    types: list[Argument] = field(default_factory=list)


def space(spec: Spec) -> str:
    return f"astrolabe_{spec.name}"


def uncast(text: str) -> tuple[str, str]:
    """(expression, the type that it is cast to or "")."""
    text = text.strip()
    found = _CAST.fullmatch(text)
    if found is None:
        called = re.fullmatch(r"(int|unsigned|long|float|double|u?int\d+_t|size_t)\s*\((.*)\)", text)
        return (called[2].strip(), called[1]) if called else (text, "")
    kind = (found["c"] or found["cpp"] or "").strip()
    inner = found["rest"].strip()
    if inner.startswith("(") and closing(inner, 0) == len(inner) - 1:
        inner = inner[1:-1].strip()
    return (inner, kind) if re.fullmatch(r"[\w.\s+*/-]+", inner) else (text, "")


def launch_template(spec: Spec, winner: str, place: Replaced, function: str, device: str, name: str) -> str:
    """The function template that launches the winner in place of `function` where all is as it was judged, and says whether."""
    types = [f"X{at}" for at in range(len(place.types))]
    kinds = [f"A{at}" for at in range(len(place.arguments))]
    template = ", ".join(f"typename {one}" for one in (*types, *kinds))
    whole = [
        any(text[:1] in '{"' for text in one.bound.values()) for one in place.arguments
    ]  # lists and texts are not copied
    parameters = ", ".join(
        f"[[maybe_unused]] {f'const {kind}&' if large else kind} a{at}"
        for at, (kind, large) in enumerate(zip(kinds, whole, strict=True))
    )
    rows = [
        f"// Launches the winner in place of {function} where all is as it was judged; whether it did.",
        f"template <{template}>",
        f"inline bool {name}({parameters}) {{",
    ]
    seen: list[list[str]] = []
    for dtype in place.arguments[0].bound:
        entry = next((n for n in spec.entry_names(dtype) if re.search(rf"\b{n}\s*\(", winner)), None)
        if entry is None:
            continue
        same, texts, lines = _branch(spec, winner, place, dtype, entry, device)
        if [*same, *texts] in seen:
            raise ExportError(f"nothing in its call tells {dtype} from the other dtypes")
        seen.append([*same, *texts])
        rows += [
            f"    if constexpr ({' && '.join(same) or 'true'}) {{",
            *(f"        {line}" for line in lines),
            "    }",
        ]
    return "\n".join([*rows, "    return false;", "}", ""])


def _branch(
    spec: Spec, winner: str, place: Replaced, dtype: str, entry: str, device: str
) -> tuple[list[str], list[str], list[str]]:
    """(what is asked of types, of texts, the lines of one dtype)."""
    from harness.export.patch import ALIGNED_BYTES, find_aliases, pointers

    names = {a.name: a for a in spec.arguments}
    c_types = C_TYPES if device == "cuda" else HOST_TYPES
    known: dict[str, str] = {}
    same = [
        f"std::is_same<X{at}, {one.bound[dtype]}>::value" for at, one in enumerate(place.types) if dtype in one.bound
    ]
    left: list[tuple[str, str]] = []
    sizes, texts = list[str](), list[str]()
    for at, one in enumerate(place.arguments):
        text, cast = uncast(one.bound[dtype])
        if text == "stream" and device == "cuda":
            known["stream"] = f"(cudaStream_t)a{at}" if "void" in one.type else f"a{at}"
        elif text.startswith("{"):
            entries = split(text[1:-1])
            sizes.append(f"std::size(a{at}) == {len(entries)}")
            for number, entry_text in enumerate(entries):
                bare = uncast(entry_text)[0]
                if bare in spec.axes and bare not in known:
                    known[bare] = f"a{at}[{number}]"
                else:
                    left.append((f"a{at}[{number}]", entry_text))
        elif re.fullmatch(r'"[^"\\]*"', text):
            texts.append(f"std::string_view(a{at}) == {text}")
        elif text in names and isinstance(names[text], Tensor) and text not in known:
            tensor = names[text]
            assert isinstance(tensor, Tensor)
            own_kind = "" if spec.build.language == "c" else re.sub(r"\bconst\b|\*", "", cast).strip()
            kind = own_kind or c_types[dtype if tensor.dtype == "T" else tensor.dtype]
            if "void" not in one.type:
                same.append(f"points_to<{kind}, A{at}>")
            known[text] = f"a{at}"
        elif (text in names or text in spec.axes) and text not in known:
            known[text] = f"a{at}"
        elif text.startswith("dim3("):
            parts = [*split(text[5:-1]), "1", "1"][:3]
            for part, member in zip(parts, "xyz", strict=True):
                bare = uncast(part)[0]
                if bare in spec.axes and bare not in known:
                    known[bare] = f"a{at}.{member}"
                else:
                    left.append((f"a{at}.{member}", part))
        else:
            left.append((f"a{at}", text))
    missing = [t.name for t in spec.tensors if t.name not in known]
    if missing:
        raise ExportError(f"the tensor {missing[0]} is no argument of what is bound")
    lines = [f"if (!({' && '.join(sizes)})) return false;"] if sizes else []
    lines += [f"const auto {n} = static_cast<int64_t>({known[n]});" for n in spec.axes if n in known]
    conditions, unknown = [*texts], [a for a in spec.axes if a not in known]
    for here, text in list(left):
        inside = [a for a in unknown if re.search(rf"\b{a}\b", text)]
        if len(inside) == 1 and len(re.findall(rf"\b{inside[0]}\b", text)) == 1 and re.fullmatch(r"[\w\s+*()-]+", text):
            axis = inside[0]
            none, one_of = (re.sub(rf"\b{axis}\b", number, text) for number in "01")
            lines.append(f"const int64_t {axis}_step = ({one_of}) - ({none});")
            lines.append(
                f"const int64_t {axis} = {axis}_step ? (static_cast<int64_t>({here}) - ({none})) / {axis}_step : -1;"
            )
            unknown.remove(axis)
    needed = [a.name for a in spec.arguments if isinstance(a, Size) and a.name in unknown]
    if needed:
        raise ExportError(f"the size {needed[0]} is no argument of what is bound, and follows from none")
    for here, text in left:
        if any(re.search(rf"\b{a}\b", text) for a in unknown):
            continue  # an axis that the winner does not take
        if not _COMPARED.fullmatch(text):
            raise ExportError(f"an argument of what is bound, {text[:60]}, is nothing that can be compared")
        names_in = (
            set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))
            - {"sizeof", "true", "false", "nullptr", "NULL"}
            - set(c_types.values())
        )
        scalars = {n: f"({known[n]})" for n in names_in if isinstance(names.get(n), Scalar) and n in known}
        if strange := names_in - set(spec.axes) - set(scalars) - {"float", "double", "int", "f"}:
            raise ExportError(
                f"an argument of what is bound, {text[:60]}, names {sorted(strange)[0]}, which the spec does not know"
            )
        with_names = text
        for name, value in scalars.items():
            with_names = re.sub(rf"\b{name}\b", value, with_names)
        conditions.append(f"{here} == ({with_names})")
    conditions += [
        f"{known[a.name]} == nullptr"
        for a in spec.arguments
        if isinstance(a, Scalar) and a.ctype == "void*" and a.name in known
    ]
    conditions += [f"reinterpret_cast<uintptr_t>({known[t.name]}) % {ALIGNED_BYTES} == 0" for t in spec.tensors]
    conditions += [
        f"(const void*){known[one]} != (const void*){known[other]}" for one, other in find_aliases(spec.tensors)
    ]
    conditions += [f"{a.name} > 0" for a in spec.arguments if isinstance(a, Size)]
    types, values = pointers(winner, entry), []
    for at, argument in enumerate(spec.arguments):
        if isinstance(argument, Tensor):
            values.append(f"({types[at]}){known[argument.name]}")
        elif isinstance(argument, Size):
            values.append(argument.name)
        else:
            exact = str(int(argument.value)) if argument.ctype == "int64_t" else repr(argument.value)
            here = f"static_cast<{argument.ctype}>({known.get(argument.name, exact)})"
            values.append("nullptr" if argument.ctype == "void*" else here)
    if device == "cuda":
        values.append(known.get("stream", "cudaStream_t(0)"))
    lines += [
        f"if ({' && '.join(conditions)}) {{",
        f"    {space(spec)}::{entry}({', '.join(values)});",
        "    return true;",
        "}",
    ]
    return same, texts, lines
