"""What a C++ function takes, read from its text, and the headers beside it that its file includes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.capture.source import CaptureError
from harness.cpp import FunctionDefinition, FunctionParameter, closing, find_defaults, find_definitions, mask, split
from kernels.spec import HEADER_SUFFIXES

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TENSOR = re.compile(r"\b(Tensor|TensorView|TensorRef|TensorList|ITensorListRef)\b")
_OPTIONAL = re.compile(r"\b(optional|Optional|OptionalTensor)\b")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
_TEXT = re.compile(
    r"\b(string|string_view|vector|initializer_list|IntArrayRef)\b|(?<!unsigned )(?<!signed )\bchar\b[\s\w]*\*"
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)]*)\)((?:\\\n|[^\n])*)", re.MULTILINE)
_STREAM = re.compile(r"\b(\w*[sS]tream_t|CUstream)\b")
MOST_HEADERS = 2000
FOLDERS = ("", "include", "includes", "inc", "csrc", "src", "source")
"""Of a checkout, that headers are included from."""


class CParameter(FunctionParameter):
    """One parameter of a C++ function, and what its type says of it."""

    @property
    def is_text(self) -> bool:
        """Whether it is a text, or a list of numbers."""
        return bool(_TEXT.search(self.type)) and not _TENSOR.search(self.type)

    @property
    def is_address(self) -> bool:
        """Whether it is a pointer that is handed as a number."""
        return "uintptr_t" in self.type and "*" not in self.type

    @property
    def pointer(self) -> str:
        """The type that a tensor's memory is cast to, "" where it takes no such one."""
        found = re.fullmatch(r"((?:const\s+)?[\w:]+(?:\s+const)?\s*\*)[\s\w]*", self.type)
        return "uintptr_t" if self.is_address else found[1] if found and not _TENSOR.search(self.type) else ""

    @property
    def is_tensor(self) -> bool:
        return bool(_TENSOR.search(self.type)) or self.is_address or ("*" in self.type and not self.is_text)

    @property
    def is_optional(self) -> bool:
        return bool(_OPTIONAL.search(self.type)) or (self.is_tensor and self.default in ("nullptr", "NULL"))

    @property
    def is_stream(self) -> bool:
        return bool(_STREAM.search(self.type)) or ("stream" in self.name and ("void" in self.type or self.is_address))

    @property
    def is_whole(self) -> bool:
        return bool(re.search(r"\b(u?int\w*|size_t|long|unsigned|bool|short)\b", self.type)) and not (
            self.is_tensor or self.is_text
        )

    @property
    def is_read_only(self) -> bool:
        return "const" in self.type


@dataclass(frozen=True)
class MadeTensor:
    """One of the tensors that a function makes and returns."""

    name: str
    like: str
    """Parameter whose dtype it has, "" where that was not read."""
    scalar_type: str
    """The dtype that the text names, behind `k` or `ScalarType::`; "" where it names none."""


@dataclass(frozen=True)
class CFunction:
    """A function of C++ by its definition."""

    name: str
    parameters: tuple[CParameter, ...]
    template: tuple[str, ...]
    """Names of its template parameters that are types."""
    numbers: tuple[str, ...]
    """Names of the others, without a default."""
    is_kernel: bool
    """Whether it is a `__global__` kernel."""
    has_c_linkage: bool
    returns: str
    namespace: str
    """Around it, as `a::b`, "" where there is none."""
    guards: tuple[str, ...] = ()
    """Names that have to be defined for it to be compiled, as an engine's build does."""
    made: tuple[MadeTensor, ...] = ()
    """Of a function that returns tensors, those of its last return."""
    is_overloaded: bool = False
    """Whether its file defines others of its name, so that its name alone says not which."""


def read_function(text: str, symbol: str, headers: Iterable[str] = (), count: int = 0) -> CFunction:
    """The function that a symbol such as `run`, `ns::run` or `Norm<128, T>::run` names, with the defaults of its declaration in one
    of the headers. Of several overloads the one whose parameters are nearest to `count`, the first by 0. Raises CaptureError."""
    path = re.sub(r"<.*?>(?=$|::)", "", re.sub(r"<[^<>]*<[^<>]*>[^<>]*>", "<>", symbol)).split("::")
    defined = find_definitions(text, path[-1]) or find_definitions(expand_macros(text, path[-1]), path[-1])
    if not defined:
        raise CaptureError(f"no function {symbol} with a body was found in it")
    outer = path[:-1]
    defined = [one for one in defined if set(outer) <= set(one.scopes)] or defined
    overloads = {tuple(one.type for one in each.parameters) for each in defined}

    def distance(one: FunctionDefinition) -> int:
        taken = sum("tream_t" not in parameter.type for parameter in one.parameters)
        return abs(taken - count) if count else 0

    found = min(defined, key=distance)
    kinds = tuple(m[1] for part in found.template if (m := re.match(r"(?:typename|class)\s+(\w+)\s*$", part)))
    numbers = tuple(
        name
        for part, name in zip(found.template, found.template_names, strict=True)
        if "=" not in part and name not in kinds
    )
    declared = next(filter(None, (find_defaults(header, path[-1]) for header in headers)), ())
    parameters = tuple(CParameter(one.type, one.name, one.default) for one in found.with_defaults(declared).parameters)
    in_file = found in find_definitions(text, path[-1])
    guards = _guards(text, found.start) if in_file else ()
    return CFunction(
        path[-1],
        parameters,
        kinds,
        numbers,
        found.is_kernel,
        found.has_c_linkage,
        found.returns,
        found.namespace,
        guards,
        _made(text[found.body : found.end]) if in_file and _TENSOR.search(found.returns) else (),
        is_overloaded=len(overloads) > 1 and not found.template,
    )


_BINDS = re.compile(r"\b(TVM_FFI_DLL_EXPORT_TYPED_FUNC|PYBIND11_MODULE|(STABLE_)?TORCH_LIBRARY(_FRAGMENT)?)\b")
_EXPORT = re.compile(
    r"TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*(\w+)\s*,\s*\(?\s*([\w:]+)"
    r'|\b(?:def|impl)\(\s*"(?:\w+::)?(\w+)"\s*,\s*(?:[A-Z]\w*\(\s*)?&?\s*([\w:]+)'
)


def binds_itself(text: str) -> bool:
    """Whether a file of C++ hands functions to Python. Kernels of operators whose schemas stand in another file do not."""
    return bool(_BINDS.search(text))


def list_exports(text: str) -> dict[str, str]:
    """By the names that a file hands functions to Python by, what C++ calls them, without namespaces."""
    found = [one.groups() for one in _EXPORT.finditer(_COMMENTS.sub("", text))] if binds_itself(text) else []
    return {a or c: (b or d).rpartition("::")[2] for a, b, c, d in found}


def _made(body: str) -> tuple[MadeTensor, ...]:
    """What the last `return` of a body hands on, by the definitions of these names."""
    code = _COMMENTS.sub("", body)
    last = re.findall(
        r"\breturn\s+(?:std::make_tuple\s*\(|std::tuple<[^;]*?>\s*[({]|\{)?\s*([\w\s,]+?)\s*[)}]?\s*;", code
    )
    found = []
    for name in split(last[-1]) if last else []:
        text = (
            re.findall(rf"\b{name}\s*=\s*([^;]*);", code)
            or re.findall(rf"\bTensor\s+{name}\s*[({{]([^;]*);", code)
            or [""]
        )[0]
        named = re.search(r"\bk(\w+)|ScalarType::(\w+)", text)
        kind = (named[1] or named[2]) if named else ""
        like = re.search(r"(?:\w*_like|new_\w+)\s*\(\s*(\w+)|\b(\w+)\s*\.\s*(?:options|scalar_type|clone)\s*\(", text)
        found.append(MadeTensor(name, (like[1] or like[2]) if like and not named else "", kind))
    return tuple(found)


def _guards(text: str, at: int) -> tuple[str, ...]:
    """Names of `#ifdef` and `#if defined` that a place is inside of, less those that the file or a compiler defines."""
    open_ones: list[str] = []
    for line in re.findall(r"^[ \t]*#[ \t]*(if\w*[^\n]*|else|elif[^\n]*|endif)", text[:at], re.MULTILINE):
        if line.startswith("if"):
            named = re.match(r"ifdef\s+(\w+)|if\s+defined\s*\(?\s*(\w+)\s*\)?\s*$", line)
            open_ones.append((named[1] or named[2]) if named else "")
        elif open_ones and line == "endif":
            open_ones.pop()
        elif open_ones:
            open_ones[-1] = ""
    return tuple(
        one
        for one in open_ones
        if one and not one.startswith("__") and not re.search(rf"^[ \t]*#[ \t]*define[ \t]+{one}\b", text, re.MULTILINE)
    )


def expand_macros(text: str, name: str) -> str:
    """What the file's own macros with parameters come to where they define `name`, as engines make one function for each dtype."""
    code, found = mask(text), list[str]()
    for one in _MACRO.finditer(text):
        parameters, body = [part.strip() for part in one[2].split(",")], one[3].replace("\\\n", "\n")
        for use in re.finditer(rf"^[ \t]*{one[1]}\s*\(", code, re.MULTILINE):
            given = split(text[use.end() : closing(code, use.end() - 1)])
            if len(given) != len(parameters):
                continue
            places = dict(zip(parameters, given, strict=True))
            filled = re.sub(r"\b\w+\b", lambda word, places=places: places.get(word[0], word[0]), body)
            filled = re.sub(r"\s*##\s*", "", filled)
            if re.search(rf"\b{re.escape(name)}\s*\(", filled):
                found.append(filled)
    return "\n".join(found)


@dataclass(frozen=True)
class Headers:
    """What a file includes of the folders around it."""

    files: dict[str, Path]
    """Path below a common folder -> where it is."""
    folders: tuple[str, ...]
    """Below the common folder, that includes are looked for in."""
    missing: tuple[str, ...]
    """Includes that were found nowhere; a compiler's own among them."""
    sources: tuple[str, ...] = ()
    """Of other sources that go along: what an include names them by."""


def find_headers(source: Path, more: Iterable[Path] = (), beside: Iterable[Path] = ()) -> Headers:
    """Follow the includes of a file, and of other sources `beside` it that go along, through its own folder, those above it up to a checkout's,
    their usual include folders, and `more`."""
    more, others = list(more), [one.resolve() for one in beside]
    places = [source.parent, *more]
    for above in list(source.parents)[:7]:
        places += [above / name for name in FOLDERS if (above / name).is_dir()]
        if (above / ".git").exists() or (above / "pyproject.toml").exists() or (above / "setup.py").exists():
            break
    places = list(dict.fromkeys(place.resolve() for place in places))
    seen: dict[Path, None] = dict.fromkeys(others)
    used, missing = dict.fromkeys([source.parent.resolve(), *(one.parent for one in others)]), dict[str, None]()
    waiting = [source.resolve(), *others]
    while waiting and len(seen) < MOST_HEADERS:
        file = waiting.pop()
        for quote, name in _INCLUDE.findall(_COMMENTS.sub("", file.read_text(errors="replace"))):
            own = [file.parent] if quote == '"' else []
            place = next((one for one in (*own, *places) if (one / name).is_file()), None)
            if place is None:
                missing[name] = None
                continue
            if place not in own or file == source.resolve():
                used[place] = None
            found = (place / name).resolve()
            if found not in seen:
                seen[found] = None
                waiting.append(found)
    if not seen:
        return Headers({}, (), tuple(missing))
    outer = [place.resolve() for place in more]

    def is_outer(path: Path) -> bool:
        return any(path.is_relative_to(place) for place in outer)

    own = [path for path in (*(one.parent for one in seen), *used) if not is_outer(path)]
    root = Path(*_common([path.parts for path in own]))

    def below(path: Path) -> str:
        for at, place in enumerate(outer):
            if path.is_relative_to(place) and not path.is_relative_to(root):
                return str(Path(f"more_{at}") / path.relative_to(place))
        return str(path.relative_to(root))

    kinds = (*HEADER_SUFFIXES, ".cu", ".cpp", ".cc", "")
    return Headers(
        {below(path): path for path in seen if path.suffix in kinds}, tuple(map(below, used)), tuple(missing),
        tuple(one.name for one in others),
    )  # fmt: skip


def _common(parts: list[tuple[str, ...]]) -> tuple[str, ...]:
    shared = []
    for pieces in zip(*parts, strict=False):
        if len(set(pieces)) > 1:
            break
        shared.append(pieces[0])
    return tuple(shared)
