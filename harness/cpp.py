"""C++ and CUDA read by their brackets alone: where functions are defined, what they take, which brackets belong together."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, replace
from functools import lru_cache

OPENING, CLOSING = "([{", ")]}"
_STRINGS = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
_HIDDEN = r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*"
_ATTRIBUTES = re.compile(r"\b(?:__launch_bounds__|__attribute__|__declspec|alignas)\s*(?=\()|\[\[")
_BEHIND = re.compile(
    r"(?:\s*(?:const\b|noexcept\b(?:\s*\([^()]*\))?|override\b|final\b))*(?:\s*->(?P<returns>[\w\s:<>,&*]+))?\s*\{"
)
_KINDS = {"int", "long", "short", "char", "bool", "float", "double", "unsigned", "signed", "auto"}


@lru_cache(16)
def mask(text: str, strings: bool = True) -> str:
    """The text with comments, lines of the preprocessor and, where `strings`, strings blank, of the same length."""
    found = re.compile(f"{_STRINGS}|{_HIDDEN}", re.DOTALL | re.MULTILINE)

    def blank(one: re.Match[str]) -> str:
        return one[0] if one[0][0] in "\"'" and not strings else re.sub(r"[^\n]", " ", one[0])

    return found.sub(blank, text)


def closing(text: str, at: int) -> int:
    """Place of the bracket that closes the one at `at`, -1 without."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] in OPENING) - (text[place] in CLOSING)
        if depth == 0:
            return place
    return -1


def angles(text: str, at: int) -> int:
    """Length of the template's arguments that begin at `at`, 0 where they do not end."""
    depth = inner = 0
    for place in range(at, len(text)):
        if text[place] in "()":
            inner += 1 if text[place] == "(" else -1
        elif text[place] in ";{}":
            return 0
        elif inner == 0 and text[place] in "<>":
            depth += 1 if text[place] == "<" else -1
            if depth == 0:
                return place - at + 1
    return 0


def split(text: str) -> list[str]:
    """At commas outside brackets, those of templates among them."""
    parts, depth, first, at = [], 0, 0, 0
    while at < len(text):
        is_template = text[at] == "<" and re.search(r"(\w|\btemplate\s)$", text[:at])
        if is_template and re.fullmatch(r"<[\w\s:,*&<>()]*>", text[at : at + (length := angles(text, at))]):
            at += length
            continue
        depth += (text[at] in OPENING) - (text[at] in CLOSING)
        if text[at] == "," and depth == 0:
            parts.append(text[first:at])
            first = at + 1
        at += 1
    return [part.strip() for part in (*parts, text[first:])] if text.strip() else []


@dataclass(frozen=True)
class FunctionParameter:
    """One parameter of a function."""

    type: str
    name: str
    """"" without one."""
    default: str


@dataclass(frozen=True)
class FunctionDefinition:
    """A function with its body."""

    head: str
    """What stands before its name: attributes, what it returns; without its template."""
    template: tuple[str, ...]
    """Its template's parameters, as they stand."""
    parameters: tuple[FunctionParameter, ...]
    returns: str
    start: int
    """Place of its name."""
    body: int
    """Place behind its opening brace."""
    end: int
    scopes: tuple[str, ...]
    """Namespaces and structs that it stands in, the innermost last."""
    namespace: str
    """Those of them that are namespaces, as `a::b`."""
    has_c_linkage: bool

    @property
    def is_kernel(self) -> bool:
        return "__global__" in self.head

    def with_defaults(self, defaults: tuple[str, ...]) -> FunctionDefinition:
        """The same with the defaults of its declaration, where as many are given."""
        if len(defaults) != len(self.parameters):
            return self
        parameters = (
            replace(one, default=one.default or more) for one, more in zip(self.parameters, defaults, strict=True)
        )
        return replace(self, parameters=tuple(parameters))

    @property
    def template_names(self) -> list[str]:
        """Of its template's parameters."""
        return [part.partition("=")[0].replace("...", " ").split()[-1] for part in self.template]


def find_definitions(text: str, name: str) -> list[FunctionDefinition]:
    """Functions of that name, in order, specialisations of a template among them."""
    code, found = mask(text), []
    readable = mask(text, strings=False)
    for match in re.finditer(rf"\b{re.escape(name)}\s*(?:<[^<>(){{}};]*>\s*)?\(", code):
        end = closing(code, match.end() - 1)
        behind = _BEHIND.match(code, end + 1) if end > 0 else None
        template, head = _head(code, readable, match.start())
        if behind is None or not re.search(r"[\w>*&:\]]\s*$", head) or re.search(r"\b(return|new|else|if)\b", head):
            continue
        outer = re.search(r"((?:\w+(?:<[^<>]*>)?\s*::\s*)+)$", head)
        head = head[: outer.start()] if outer else head
        if not head.strip():  # a constructor
            continue
        named = re.findall(r"(\w+)(?:<[^<>]*>)?\s*::", outer[1]) if outer else []
        around = _around(code, readable, match.start())
        last = closing(code, behind.end() - 1)
        returns = re.sub(r"__\w+__|\b(?:static|inline|constexpr|extern|virtual|friend)\b|\"C\"", " ", head).split()
        found.append(
            FunctionDefinition(
                head, tuple(template), tuple(_parameter(one) for one in split(readable[match.end() : end])),
                " ".join((behind["returns"] or "").split() or returns), match.start(), behind.end(), last if last > 0 else len(text),
                (*(one for _, one, _ in around if one), *named), "::".join(one for kind, one, _ in around if kind == "namespace" and one),
                'extern "C"' in head or any(kind == "extern" for kind, _, _ in around),
            )
        )  # fmt: skip
    return found


def find_defaults(header: str, name: str) -> tuple[str, ...]:
    """Of a function's parameters, "" of one without, by its declaration."""
    code = mask(header)
    for match in re.finditer(rf"\b{re.escape(name)}\s*\(", code):
        end = closing(code, match.end() - 1)
        if end > 0 and re.match(r"\s*(noexcept\s*)?;", code[end + 1 :]):
            parts = split(mask(header, strings=False)[match.end() : end])
            if any("=" in part for part in parts):
                return tuple(part.partition("=")[2].strip() for part in parts)
    return ()


def find_scopes(text: str, at: int) -> list[str]:
    """Names of the namespaces and structs whose braces `at` is in, the innermost last."""
    return [name for _, name, _ in _around(mask(text), mask(text, strings=False), at) if name]


def find_templates(text: str, at: int) -> dict[str, list[str]]:
    """Struct whose braces `at` is in -> its template's parameters."""
    return {name: template for _, name, template in _around(mask(text), mask(text, strings=False), at) if template}


def without_dead_conditionals(text: str, architecture: int = 0) -> str:
    """The text without what `#if defined(...)` leaves out by the names that it defines itself, without a value and once, and, for an architecture as
    nvcc counts them (900), by comparisons of __CUDA_ARCH__."""
    defines = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]*$", text, re.MULTILINE)
    known = {name for name in defines if not re.search(rf"^[ \t]*#[ \t]*undef[ \t]+{name}\b", text, re.MULTILINE)}
    kept, opened = list[str](), list[tuple[bool | None, bool]]()
    for line in text.splitlines(keepends=True):
        word = re.match(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b[ \t]*(.*)", line)
        live = all(alive for _, alive in opened)
        if word is None:
            kept += [line] if live else []
        elif word[1].startswith("if"):
            asked = word[2] if word[1] == "if" else f"{'!' * (word[1] == 'ifndef')}defined({word[2].strip()})"
            decided = _decide(asked, known)
            decided = _compare_architecture(asked, architecture) if decided is None and architecture else decided
            kept += [line] if live and decided is None else []
            opened.append((decided, decided is not False))
        elif word[1] == "endif":
            decided, _ = opened.pop()
            kept += [line] if all(alive for _, alive in opened) and decided is None else []
        else:
            decided, alive = opened.pop()
            if decided is not None and word[1] == "elif":  # nothing here is written so
                return text
            opened.append((decided, alive if decided is None else not alive))
            kept += [line] if live and decided is None else []
    left = "".join(kept)
    for name in known:
        if len(re.findall(rf"\b{name}\b", left)) == 1:
            left = re.sub(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]*\n", "", left, flags=re.MULTILINE)
    return left


def _decide(asked: str, known: set[str]) -> bool | None:
    """What a condition of `defined(...)` is for these names, None where it hangs on others or is no such condition."""
    bare = re.sub(r"//.*|/\*.*?\*/", "", asked).strip()
    names = re.findall(r"!?\s*defined\s*\(\s*(\w+)\s*\)", bare)
    joined = {one.strip() for one in re.split(r"!?\s*defined\s*\(\s*\w+\s*\)", bare)} - {""}
    if not names or len(joined) > 1 or not joined <= {"||", "&&"}:
        return None
    terms = [
        (one[1] in known, not one[0].startswith("!")) for one in re.findall(r"(!?\s*defined)\s*\(\s*(\w+)\s*\)", bare)
    ]
    sure, is_any = [wanted for is_known, wanted in terms if is_known], joined != {"&&"}
    if is_any in sure:
        return is_any
    return (not is_any) if len(sure) == len(terms) else None


def _compare_architecture(asked: str, architecture: int) -> bool | None:
    """What a condition of comparisons of __CUDA_ARCH__ with numbers is, joined by `||` or by `&&`; None where it is none."""
    bare = re.sub(r"//.*|/\*.*?\*/", "", asked).strip()
    compared = [
        re.fullmatch(r"\(?\s*__CUDA_ARCH__\s*(>=|<=|==|!=|>|<)\s*(\d+)\s*\)?", one.strip())
        for one in re.split(r"\|\||&&", bare)
    ]
    if not all(compared) or ("||" in bare and "&&" in bare):
        return None
    found = [COMPARED[one[1]](architecture, int(one[2])) for one in compared if one]
    return any(found) if "||" in bare else all(found)


COMPARED = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def statement_head(code: str, at: int) -> int:
    """Place behind the end of the statement before, in a masked text."""
    return max(code.rfind(one, 0, at) for one in ";{}") + 1


def _around(code: str, readable: str, at: int) -> list[tuple[str, str, list[str]]]:
    """(`namespace`, `struct`, `class`, `extern` or "", name, template's parameters) of all braces that `at` is in."""
    opened: list[int] = []
    for brace in re.finditer(r"[{}]", code[:at]):
        opened = [*opened, brace.start()] if brace[0] == "{" else opened[:-1]
    found = []
    for place in opened:
        template, head = _head(code, readable, place)
        named = re.search(r"\b(namespace|struct|class)\b\s*([\w:]*)", head)
        if named and "(" not in head:
            found += [(named[1], one, template) for one in named[2].split("::")]
        else:
            found.append(("extern" if re.search(r'\bextern\s*"C"\s*$', head) else "", "", []))
    return found


def _head(code: str, readable: str, at: int) -> tuple[list[str], str]:
    """(parameters of the template, the rest without attributes in brackets) of what stands before `at` in its statement."""
    head = re.sub(r"^\s*(public|private|protected)\s*:(?!:)", "", readable[statement_head(code, at) : at])
    template: list[str] = []
    while (begin := re.match(r"\s*template\s*(?=<)", head)) and (length := angles(head, begin.end())):
        template = split(head[begin.end() + 1 : begin.end() + length - 1])
        head = head[begin.end() + length :]
    while found := _ATTRIBUTES.search(head):
        end = closing(head, found.start() if found[0] == "[[" else found.end())
        if end < 0:
            break
        head = f"{head[: found.start()]} {head[end + 1 :]}"
    return template, head


def _parameter(text: str) -> FunctionParameter:
    declared, _, default = text.partition("=")
    declared = re.sub(r"__restrict__|__restrict|\bRESTRICT\b", " ", declared)
    found = re.match(r"(.*?)(\w+)\s*(\[\w*\])?\s*$", declared, re.DOTALL)
    if found and found[1].strip() not in ("", "const") and found[2] not in _KINDS:
        return FunctionParameter(" ".join(found[1].split()) + ("*" if found[3] else ""), found[2], default.strip())
    return FunctionParameter(" ".join(declared.split()), "", default.strip())
