"""What a C++ function takes, read from its text, and the headers beside it that its file includes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.capture.source import CaptureError
from kernels.spec import HEADER_SUFFIXES

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TENSOR = re.compile(r"\b(Tensor|TensorView|TensorRef)\b")
_OPTIONAL = re.compile(r"\b(optional|Optional|OptionalTensor)\b")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
_STREAM = re.compile(r"\b(cudaStream_t|CUstream|hipStream_t)\b")
MOST_HEADERS = 2000
FOLDERS = ("", "include", "csrc", "src", "source")
"""Of a checkout, that headers are included from."""


@dataclass(frozen=True)
class CParameter:
    """One parameter of a C++ function."""

    type: str
    name: str
    default: str

    @property
    def is_tensor(self) -> bool:
        return bool(_TENSOR.search(self.type)) or (
            "*" in self.type and not re.search(r"(?<!unsigned )(?<!signed )\bchar\b", self.type)
        )

    @property
    def is_optional(self) -> bool:
        return bool(_OPTIONAL.search(self.type)) or (self.is_tensor and self.default in ("nullptr", "NULL"))

    @property
    def is_stream(self) -> bool:
        return bool(_STREAM.search(self.type))

    @property
    def is_whole(self) -> bool:
        return bool(re.search(r"\b(u?int\w*|size_t|long|unsigned|bool|short)\b", self.type)) and not self.is_tensor

    @property
    def is_read_only(self) -> bool:
        return "const" in self.type


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


def read_function(text: str, symbol: str) -> CFunction:
    """The function that a symbol such as `run`, `ns::run` or `Norm<128, T>::run` names. Raises CaptureError."""
    bare = _COMMENTS.sub(lambda found: " " * len(found[0]), text)
    path = re.sub(r"<.*?>(?=$|::)", "", re.sub(r"<[^<>]*<[^<>]*>[^<>]*>", "<>", symbol)).split("::")
    name, begin = path[-1], 0
    for outer in path[:-1]:
        if found := re.compile(rf"\b(struct|class)\s+{re.escape(outer)}\b[^;{{]*\{{").search(bare, begin):
            begin = found.end()
    definition = re.compile(rf"([\w:<>,&*\s\"]*?)\b{re.escape(name)}\s*\(")
    for found in definition.finditer(bare, begin):
        end = _closing(bare, found.end() - 1)
        if end is None or not re.match(r"\s*(const\b|noexcept\b|->\s*\w+)*\s*\{", bare[end + 1 :]):
            continue
        before = re.split(r"[;}{]|^\s*#.*$", bare[begin : found.end(1)], flags=re.MULTILINE)[-1]
        if re.search(r"\b(return|else|if|while|for|switch)\b", before) or not before.strip():
            continue
        templates = re.search(r"template\s*<(.*)>", before, re.DOTALL)
        inner = _parted(templates[1]) if templates else []
        kinds = tuple(m[1] for one in inner if (m := re.search(r"\b(?:typename|class)\s+(\w+)\s*$", one)))
        numbers = tuple(
            m[1] for one in inner if "=" not in one and (m := re.search(r"(\w+)\s*$", one)) and m[1] not in kinds
        )
        return CFunction(
            name, tuple(_parameter(one) for one in _parted(bare[found.end() : end])), kinds, numbers,
            "__global__" in before, 'extern "C"' in before or _in_c_block(bare, found.start()), _returned(before), _namespace(bare, found.start()),
        )  # fmt: skip
    raise CaptureError(f"no function {symbol} with a body was found in it")


def _namespace(text: str, at: int) -> str:
    around: list[str | None] = []
    for found in re.finditer(r"\bnamespace\s+([\w:]+)\s*\{|[{}]", text[:at]):
        if found[0] == "}":
            around = around[:-1]
        else:
            around.append(found[1])
    return "::".join(name for name in around if name)


def _returned(before: str) -> str:
    words = re.sub(
        r"template\s*<.*>|\b(static|inline|extern|constexpr|__global__|__host__|__forceinline__)\b|\"C\"",
        " ",
        before,
        flags=re.DOTALL,
    )
    return " ".join(re.sub(r"\b__launch_bounds__\s*\(.*\)", " ", words).split())


def _in_c_block(text: str, at: int) -> bool:
    begin = text.rfind('extern "C" {', 0, at)
    return begin >= 0 and text.count("{", begin, at) > text.count("}", begin, at)


def _closing(text: str, at: int) -> int | None:
    """Place of the parenthesis that closes the one there."""
    depth = 0
    for place in range(at, min(len(text), at + 20_000)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return None


def _parted(text: str) -> list[str]:
    """Between commas that are in no brackets."""
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"(": 1, "<": 1, "{": 1, "[": 1, ")": -1, ">": -1, "}": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            found.append(text[begin:at])
            begin = at + 1
    return [one.strip() for one in (*found, text[begin:]) if one.strip()]


def _parameter(text: str) -> CParameter:
    said, _, default = text.partition("=")
    said = re.sub(r"__restrict__|__restrict|\bRESTRICT\b", " ", said)
    if (found := re.match(r"(.*?)(\w+)\s*(\[\w*\])?\s*$", said, re.DOTALL)) and found[1].strip():
        return CParameter(" ".join(found[1].split()) + ("*" if found[3] else ""), found[2], default.strip())
    return CParameter(" ".join(said.split()), "", default.strip())


@dataclass(frozen=True)
class Headers:
    """What a file includes of the folders around it."""

    files: dict[str, Path]
    """Path below a common folder -> where it is."""
    folders: tuple[str, ...]
    """Below the common folder, that includes are looked for in."""
    missing: tuple[str, ...]
    """Includes that were found nowhere; a compiler's own among them."""


def find_headers(source: Path, more: Iterable[Path] = ()) -> Headers:
    """Follow the includes of a file through its own folder, those above it up to a checkout's, their usual include folders, and `more`."""
    more = list(more)
    places = [source.parent, *more]
    for above in list(source.parents)[:7]:
        places += [above / name for name in FOLDERS if (above / name).is_dir()]
        if (above / ".git").exists() or (above / "pyproject.toml").exists() or (above / "setup.py").exists():
            break
    places = list(dict.fromkeys(place.resolve() for place in places))
    seen: dict[Path, None] = {}
    used, missing = {source.parent.resolve(): None}, dict[str, None]()
    waiting = [source.resolve()]
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
        {below(path): path for path in seen if path.suffix in kinds}, tuple(map(below, used)), tuple(missing)
    )


def _common(parts: list[tuple[str, ...]]) -> tuple[str, ...]:
    shared = []
    for pieces in zip(*parts, strict=False):
        if len(set(pieces)) > 1:
            break
        shared.append(pieces[0])
    return tuple(shared)
