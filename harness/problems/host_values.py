"""Expressions of a forward as its host says them: integers, tensors, and what goes through Python's C interface."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

DTYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "bool": 11, "bfloat16": 15,
    "half": 5, "float": 6, "double": 7, "int": 3, "long": 4,
}  # fmt: skip
"""torch's numbers for them, which its C shim keeps."""
VIEWS = ("view", "reshape", "as_strided", "contiguous")
GET_ITEM = '__import__("operator").getitem'


class NoHost(Exception):
    """Python's forward stays; one sentence why."""


@dataclass(frozen=True)
class _Step:
    parent: int
    name: str
    is_number: bool
    is_tensor: bool


class HostValues:
    """Values of one forward. A local name is a tensor's slot, an int64_t, or the device."""

    def __init__(self, module: str, kinds: dict[str, str], others: set[str], native: str, device: str) -> None:
        """`others`: what else may be another value in every call."""
        self.module, self.kinds, self.native, self.device = module, kinds, native, device
        self.arguments = list(kinds)
        self.tensors: dict[str, str] = {name: f"v_{name}" for name in self.arguments if self.kinds[name] == "t"}
        self.integers: dict[str, str] = {}
        self.devices: set[str] = set()
        self.given_away: set[tuple[tuple[str, bool], ...]] = set()
        """Paths of attributes that forward has assigned: all others are read once, before anything is done."""
        self.locals = {module, *self.arguments, *others}
        self.steps: list[_Step] = []
        self.objects: list[str] = []
        self.slots = list(self.arguments)
        self.lines: list[str] = []
        self.temporaries: dict[str, str] = {}
        """Text of an unnamed value in the statement at hand -> its slot."""

    # ------------------------------------------------------------------------------------------ integers

    def _is_integer(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return isinstance(node.value, int)
        if isinstance(node, ast.Name):
            return node.id in self.integers
        if isinstance(node, ast.BinOp):
            return self._is_integer(node.left) and self._is_integer(node.right)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and self._is_integer(node.operand)
        if isinstance(node, ast.Subscript):
            held = node.value
            return (
                isinstance(held, ast.Attribute)
                and held.attr == "shape"
                and self._is_tensor(held.value)
                and self._is_integer(node.slice)
            )
        return (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self._is_tensor(node.func.value)
            and node.func.attr in ("size", "numel", "dim", "storage_offset") and len(node.args) == (node.func.attr == "size")
        )  # fmt: skip

    def _integer(self, node: ast.expr) -> str:
        if not self._is_integer(node):
            raise NoHost(f"{ast.unparse(node)} is no integer that is known before the kernels run")
        if isinstance(node, ast.Constant):
            return f"{int(node.value)}" if abs(int(node.value)) < 1 << 31 else f"INT64_C({int(node.value)})"  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            return self.integers[node.id]
        if isinstance(node, ast.UnaryOp):
            return f"-({self._integer(node.operand)})"
        if isinstance(node, ast.BinOp):
            left, right = f"int64_t({self._integer(node.left)})", self._integer(node.right)
            operators = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
            if type(node.op) in operators:
                return f"({left} {operators[type(node.op)]} {right})"
            functions = {ast.FloorDiv: "quotient", ast.Mod: "remainder"}
            if type(node.op) in functions:
                return f"host::{functions[type(node.op)]}({left}, {right})"
            raise NoHost(f"{ast.unparse(node)} is no sum of products")
        if isinstance(node, ast.Subscript):
            return f"{self._tensor(node.value.value)}.size({self._integer(node.slice)})"  # type: ignore[attr-defined]
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        of = self._tensor(node.func.value)
        names = {"size": "size", "numel": "elements", "dim": "rank", "storage_offset": "offset"}
        return f"{of}.{names[node.func.attr]}({', '.join(map(self._integer, node.args))})"

    def _is_size(self, node: ast.expr) -> bool:
        return (
            all(map(self._is_integer, node.elts)) if isinstance(node, (ast.Tuple, ast.List)) else self._is_integer(node)
        )

    def _integers(self, node: ast.expr) -> str:
        if not isinstance(node, (ast.Tuple, ast.List)):
            raise NoHost(f"{ast.unparse(node)} is no list of sizes")
        return f"ints({', '.join(map(self._integer, node.elts))})"

    # ------------------------------------------------------------------------------------------ tensors

    def _slot(self, name: str) -> str:
        if name not in self.tensors:
            self.tensors[name] = f"v_{name}"
            self.slots.append(name)
        return self.tensors[name]

    def _slot_of(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name) or node.id not in self.tensors:
            raise NoHost(f"forward deletes {ast.unparse(node)}")
        return self.tensors[node.id]

    def _is_tensor(self, node: ast.expr) -> bool:
        return (isinstance(node, ast.Name) and node.id in self.tensors) or self._path(node) is not None

    def _path(self, node: ast.expr) -> list[tuple[str, bool]] | None:
        """The names and numbers on the way from the module: `self.layers[0].weight`."""
        if isinstance(node, ast.Name):
            return [] if node.id == self.module else None
        if isinstance(node, ast.Attribute):
            before = self._path(node.value)
            return None if before is None else [*before, (node.attr, False)]
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, int)
        ):
            before = self._path(node.value)
            return None if before is None or node.slice.value < 0 else [*before, (str(node.slice.value), True)]
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) == 2:
            before, name = self._path(node.args[0]), node.args[1]
            if before is not None and isinstance(name, ast.Constant) and re.fullmatch(r"\w+", str(name.value)):
                return [*before, (str(name.value), False)]
        return None

    def _held(self, path: list[tuple[str, bool]]) -> str:
        """The module's tensor at a path, of which what two have in common is gone once."""
        if not path or any(tuple(path[:count]) in self.given_away for count in range(1, len(path) + 1)):
            raise NoHost("forward gives the module itself away, or reads what it has assigned")
        parent = -1
        for place, (name, is_number) in enumerate(path):
            step = _Step(parent, name, is_number, place == len(path) - 1)
            if step not in self.steps:
                self.steps.append(step)
            parent = self.steps.index(step)
        return f"c.held[{parent}]"

    def _holder(self, path: list[tuple[str, bool]]) -> str:
        """A new reference to what is at a path, as Python finds it."""
        found = "c.module()"
        for name, is_number in path:
            item = f"c.tuple({{{found}, c.of(int64_t({name}))}})" if is_number else ""
            found = f"c.call({self._object(GET_ITEM)}, {item})" if is_number else f'c.method({found}, "{name}")'
        return found

    def _tensor(self, node: ast.expr) -> str:
        """The tensor as C++ names it; what has no name gets a slot until the statement's end."""
        if isinstance(node, ast.Name) and node.id in self.tensors:
            return self.tensors[node.id]
        path = self._path(node)
        if path is not None:
            return self._held(path)
        if not isinstance(node, ast.Call):
            raise NoHost(f"{ast.unparse(node)} is no tensor that is known before the kernels run")
        text = ast.unparse(node)
        if text not in self.temporaries:
            slot = self._slot(f"temporary_{len(self.temporaries)}")
            self._make(node, slot)
            self.temporaries[text] = slot
        return self.temporaries[text]

    def _make(self, node: ast.expr, out: str) -> None:
        """Lines that put the tensor into the slot `out`."""
        if not isinstance(node, ast.Call):
            self.lines.append(f"{out}.same({self._tensor(node)});")
            return
        function = ast.unparse(node.func)
        if function == "torch.empty" and self._empty(node, out):
            return
        if self._view(node, out):
            return
        quick = self._operator(node, out) if re.fullmatch(r"torch\.ops\.aten\.\w+\.\w+", function) else ""
        usual = self._usual(node, out)
        through_python = usual or f"{{ Inside inside(c); c.take({self._python(node)}, {out}); }}"
        self.lines.append(f"if (!{quick}) {through_python}" if quick else through_python)

    def _empty(self, node: ast.Call, out: str) -> bool:
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if (
            set(named) != {"dtype", "device"}
            or len(node.args) != 1
            or not isinstance(node.args[0], (ast.Tuple, ast.List))
        ):
            return False
        if not self._is_this_device(named["device"]):
            return False
        self.lines.append(f"c.empty({out}, {self._integers(node.args[0])}, {number_of_dtype(named['dtype'])});")
        return True

    def _is_this_device(self, node: ast.expr) -> bool:
        return (isinstance(node, ast.Name) and node.id in self.devices) or is_device(node, self.tensors)

    def _is_view(self, node: ast.expr) -> bool:
        """A method of a tensor that makes no kernel."""
        return (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS
            and not self._is_constant(node.func) and not node.keywords and all(map(self._is_size, node.args))
        )  # fmt: skip

    def _view(self, node: ast.Call, out: str) -> bool:
        if not self._is_view(node):
            return False
        assert isinstance(node.func, ast.Attribute)
        base, name = node.func.value, node.func.attr
        if name == "contiguous":
            if isinstance(base, ast.Call) and self._path(base) is None:
                self._make(base, out)
                self.lines.append(f"c.contiguous({out}, {out});")
            else:
                self.lines.append(f"c.contiguous({out}, {self._tensor(base)});")
            return True
        of = self._tensor(base)
        if name == "as_strided":
            shape, strides, *beyond = node.args
            added = f"{self._integer(beyond[0])} - {of}.offset()" if beyond else "0"
            self.lines.append(f"c.strided({out}, {of}, {self._integers(shape)}, {self._integers(strides)}, {added});")
        else:
            sizes = (
                node.args[0] if isinstance(node.args[0], (ast.Tuple, ast.List)) else ast.Tuple(node.args, ast.Load())
            )
            self.lines.append(f"c.view({out}, {of}, {self._integers(sizes)});")
        return True

    def _operator(self, node: ast.Call, out: str) -> str:
        """A call of an operator that host.h calls without Python, "" for others."""
        name = ast.unparse(node.func).removeprefix("torch.ops.aten.")
        arguments = node.args
        if node.keywords:
            return ""
        if match := re.fullmatch(r"conv(_transpose)?([123])d\.(default|input)", name):
            return self._convolution(arguments, out, bool(match[1]), int(match[2]))
        plain = {"mm.default": 2, "bmm.default": 2, "matmul.default": 2, "addmm.default": 3}
        if plain.get(name) == len(arguments):
            return f"c.{name.removesuffix('.default')}({out}, {', '.join(map(self._tensor, arguments))})"
        if name == "cat.default" and isinstance(arguments[0], ast.List) and len(arguments) <= 2:
            parts = ", ".join(f"&{self._tensor(part)}" for part in arguments[0].elts)
            axis = self._integer(arguments[1]) if len(arguments) == 2 else "0"
            return f"c.cat({out}, {{{parts}}}, {axis})"
        if name == "linear.default" and len(arguments) in (2, 3):
            bias = self._optional(arguments[2]) if len(arguments) == 3 else "nullptr"
            return f"c.linear({out}, {self._tensor(arguments[0])}, {self._tensor(arguments[1])}, {bias})"
        return ""

    def _optional(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and node.value is None:
            return "nullptr"
        return f"&{self._tensor(node)}"

    def _convolution(self, arguments: list[ast.expr], out: str, transposed: bool, rank: int) -> str:
        ones, zeros = (ast.parse(repr([number] * rank), mode="eval").body for number in (1, 0))
        none, one = ast.Constant(None), ast.Constant(1)
        defaults = [none, ones, zeros, zeros, one, ones] if transposed else [none, ones, zeros, ones, one]
        if not 2 <= len(arguments) <= 2 + len(defaults):
            return ""
        bias, stride, padding, *rest = [*arguments[2:], *defaults[len(arguments) - 2 :]]
        beyond, groups, dilation = rest if transposed else (zeros, rest[1], rest[0])
        lists = [stride, padding, dilation, beyond]
        if not all(isinstance(each, (ast.List, ast.Tuple)) and len(each.elts) in (1, rank) for each in lists):
            return ""
        wide = [each if len(each.elts) == rank else ast.List(each.elts * rank, ast.Load()) for each in lists]  # type: ignore[attr-defined]
        stride_, padding_, dilation_, beyond_ = map(self._integers, wide)
        a, weight = map(self._tensor, arguments[:2])
        return (
            f"c.convolution({out}, {a}, {weight}, {self._optional(bias)}, {stride_}, {padding_}, {dilation_}, {cpp_bool(transposed)}, "
            f"{beyond_}, {self._integer(groups)})"
        )

    # ------------------------------------------------------------------------------------------ through Python

    def _place(self, node: ast.expr | str) -> int:
        """Index among the plan's objects of what is the same in every call."""
        text = node if isinstance(node, str) else ast.unparse(node)
        if text not in self.objects:
            self.objects.append(text)
        return self.objects.index(text)

    def _object(self, node: ast.expr | str) -> str:
        return f"c.object({self._place(node)})"

    def _python(self, node: ast.expr) -> str:
        """A new reference, for whoever has the interpreter."""
        if self._path(node) is not None or (isinstance(node, ast.Name) and node.id in self.tensors):
            return f"c.of({self._tensor(node)})"
        if isinstance(node, ast.Name) and node.id in self.devices:
            first = next(name for name in self.arguments if self.kinds[name] == "t")
            return f'c.method(c.of({self.tensors[first]}), "device")'
        if isinstance(node, ast.Name) and node.id in self.arguments:
            return f"c.argument({self.arguments.index(node.id)})"
        if self._is_constant(node):
            return self._object(node)
        if self._is_integer(node):
            return f"c.of({self._integer(node)})"
        if isinstance(node, (ast.List, ast.Tuple)):
            word = "list" if isinstance(node, ast.List) else "tuple"
            return f"c.{word}({{{', '.join(map(self._python, node.elts))}}})"
        if isinstance(node, ast.Dict):
            if not all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys):
                raise NoHost("a dictionary has other keys than texts")
            return self._dict([(key.value, value) for key, value in zip(node.keys, node.values, strict=True)])  # type: ignore[union-attr]
        if (
            isinstance(node, ast.Attribute)
            and self._is_tensor(node.value)
            and node.attr in ("shape", "dtype", "device")
        ):
            return f'c.method(c.of({self._tensor(node.value)}), "{node.attr}")'
        if isinstance(node, ast.Call):
            return self._python_call(node)
        raise NoHost(f"{ast.unparse(node)} has no form outside of Python")

    def _python_call(self, node: ast.Call) -> str:
        function = node.func
        if any(isinstance(argument, ast.Starred) for argument in node.args) or any(
            k.arg is None for k in node.keywords
        ):
            raise NoHost(f"{ast.unparse(node)} unpacks its arguments")
        if isinstance(function, ast.Attribute) and not self._is_constant(function):
            if not (self._is_tensor(function.value) or isinstance(function.value, ast.Call)):
                raise NoHost(f"forward calls {ast.unparse(function)}")
            if self._is_view(node):
                return f"c.of({self._tensor(node)})"
            if function.attr.endswith("_") and isinstance(function.value, ast.Call):
                raise NoHost(f"forward changes {ast.unparse(function.value)}")
            called = f'c.method({self._python(function.value)}, "{function.attr}")'
        elif self._is_constant(function):
            called = self._object(self._called(function))
        else:
            raise NoHost(f"forward calls {ast.unparse(function)}")
        parts = ", ".join(map(self._python, node.args))
        named = f", {self._dict([(k.arg, k.value) for k in node.keywords])}" if node.keywords else ""  # type: ignore[misc]
        return f"c.call({called}, c.tuple({{{parts}}}){named})"

    def _usual(self, node: ast.Call, out: str) -> str:
        """A call of tensors, integers and constants that makes one tensor, "" where it is more than that."""
        if (
            node.keywords
            or not self._is_constant(node.func)
            or any(isinstance(part, ast.Starred) for part in node.args)
        ):
            return ""
        given = []
        for part in node.args:
            if self._is_tensor(part) or self._is_view(part):
                given.append(self._tensor(part))
            elif self._is_constant(part):
                given.append(f"Constant{{{self._place(part)}}}")
            elif self._is_integer(part):
                given.append(f"int64_t({self._integer(part)})")
            else:
                return ""
        return f"c.python({out}, {self._place(self._called(node.func))}, {{{', '.join(given)}}});"

    def _called(self, function: ast.expr) -> str:
        """The text of a function that is the same in every call; of an operator what its object itself would call."""
        name = ast.unparse(function)
        if name.split(".")[0] == self.native or name in ("print", "super"):
            raise NoHost(f"forward calls {name} in an expression")
        return f'getattr({name}, "_op", {name})' if re.fullmatch(r"torch\.ops(\.\w+){3}", name) else name

    def _dict(self, parts: list[tuple[str, ast.expr]]) -> str:
        inner = ", ".join(f"{{{quote(name)}, {self._python(value)}}}" for name, value in parts)
        return f"c.dict({{{inner}}})"

    def _is_constant(self, node: ast.expr) -> bool:
        """Whether it reads nothing of the call and calls nothing but `float`."""
        allowed = (
            ast.Constant,
            ast.Name,
            ast.Attribute,
            ast.List,
            ast.Tuple,
            ast.UnaryOp,
            ast.USub,
            ast.Load,
            ast.Call,
        )
        for part in ast.walk(node):
            if not isinstance(part, allowed) or (isinstance(part, ast.Name) and part.id in self.locals):
                return False
            if isinstance(part, ast.Call) and not (
                ast.unparse(part.func) == "float" and isinstance(part.args[0], ast.Constant)
            ):
                return False
        return True


def is_device(node: ast.expr, tensors: dict[str, str]) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "device"
        and isinstance(node.value, ast.Name)
        and node.value.id in tensors
    )


def number_of_dtype(node: ast.expr) -> int:
    text = ast.unparse(node)
    if not text.startswith("torch.") or text.removeprefix("torch.") not in DTYPES:
        raise NoHost(f"the type {text} has no number")
    return DTYPES[text.removeprefix("torch.")]


def cpp_bool(value: bool) -> str:
    return "true" if value else "false"


def double_text(value: float) -> str:
    if value != value or value in (float("inf"), -float("inf")):
        raise NoHost(f"a kernel takes the number {value}")
    return repr(value)


def quote(text: str) -> str:
    """A C++ literal, in pieces that compilers take."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("?", "\\?")
    pieces = re.findall(r"(?:\\.|[^\\]){1,400}", plain, re.DOTALL) or [""]
    return " ".join(f'"{piece}"' for piece in pieces)
