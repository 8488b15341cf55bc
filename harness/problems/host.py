"""A candidate's forward as one native call: C++ made of its Python text, built behind its native source.

    @native.host
    def forward(self, x): ...

asks for it. What can be said is what drafts are made of: sizes and checks of the arguments, numbers read of a tensor (`n: int = x.item()`), `torch.empty`, kernels of the candidate, `del`,
calls of torch, one `return`. Tensors are allocated, kernels launched, convolutions and matrix products called in C++ through torch's C shim
(host.h); every other call goes through Python's C interface without the interpreter's loop. Python's forward stays in the candidate and is
what runs where something cannot be said, where torch lacks the shim, or where an argument is no plain tensor.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

HEADER = Path(__file__).with_suffix(".h")
DTYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "bool": 11, "bfloat16": 15,
    "half": 5, "float": 6, "double": 7, "int": 3, "long": 4,
}  # fmt: skip
"""torch's numbers for them, which its C shim keeps."""
NUMBERS = {
    "c_double": "double", "c_float": "float", "c_int": "int32_t", "c_int32": "int32_t", "c_int64": "int64_t", "c_longlong": "int64_t",
    "c_uint32": "uint32_t", "c_uint64": "uint64_t",
}  # fmt: skip
CHANGING = (
    "rand", "drop", "bernoulli", "normal", "exponential", "multinomial", "uniform", "poisson", "geometric", "cauchy", "rrelu", "batch_norm",
    "lstm", "gru", "rnn", "copy", "set", "out", "resize",
)  # fmt: skip
"""Words in the names of operators that draw numbers, or may change what they are given."""
VIEWS = ("view", "reshape", "as_strided", "contiguous")
GET_ITEM = '__import__("operator").getitem'
MARGIN = "    "


class NoHost(Exception):
    """Python's forward stays; one sentence why."""


def host_source(text: str, device: str) -> str:
    """What is built behind the candidate's native source, "" where its forward stays Python's."""
    try:
        return translate(text, device)
    except NoHost:
        return ""


def translate(text: str, device: str) -> str:
    """The same. Raises NoHost."""
    tree = ast.parse(text)
    forward, native = _marked_forward(tree)
    return f"\n{HEADER.read_text()}\n{_Translation(forward, native, device, _written_by_kernels(tree, device)).text()}"


def _written_by_kernels(tree: ast.Module, device: str) -> dict[str, list[bool]]:
    """The candidate's functions that C names, and which of their parameters they may write through."""
    wanted = "CUDA_SOURCE" if device == "cuda" else "CPP_SOURCE"
    sources = [
        node.value.value for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == wanted and isinstance(node.value, ast.Constant)
    ]  # fmt: skip
    found = re.findall(r'extern "C" void (\w+)\s*\(([^()]*)\)\s*\{', "".join(map(str, sources)))
    return {
        name: ["*" in one and "const" not in one.split("*")[0] for one in given.split(",")] for name, given in found
    }


def _marked_forward(tree: ast.Module) -> tuple[ast.FunctionDef, str]:
    """The method of ModelNew that is marked, forward as a rule, and the name of what load_native answered."""
    natives = [
        node.targets[0].id for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name) and node.value.func.id == "load_native"
    ]  # fmt: skip
    models = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"]
    if len(natives) != 1 or len(models) != 1:
        raise NoHost("there is not one ModelNew and one load_native")
    marked = [
        method for method in models[0].body
        if isinstance(method, ast.FunctionDef) and [ast.unparse(node) for node in method.decorator_list] == [f"{natives[0]}.host"]
    ]  # fmt: skip
    if len(marked) != 1:
        raise NoHost(f"there is not one method that is marked by @{natives[0]}.host")
    return marked[0], natives[0]


@dataclass(frozen=True)
class _Step:
    parent: int
    name: str
    is_number: bool
    is_tensor: bool


class _Translation:
    """Statements one after another. A local name is a tensor's slot, an int64_t, or the device."""

    def __init__(self, forward: ast.FunctionDef, native: str, device: str, written: dict[str, list[bool]]) -> None:
        self.forward, self.native, self.device, self.written = forward, native, device, written
        given, star = forward.args, forward.args.vararg
        unseen = {argument.arg for argument in [star, given.kwarg, *given.kwonlyargs] if argument}
        if star is not None:
            _list_arguments(forward, star.arg)
        _leave_out_names(forward)
        if not given.args:
            raise NoHost("forward takes no module")
        self.module, *self.arguments = [argument.arg for argument in [*given.posonlyargs, *given.args]]
        self.kinds = {name: _kind_of_argument(forward, name) for name in self.arguments}
        self.tensors: dict[str, str] = {name: f"v_{name}" for name in self.arguments if self.kinds[name] == "t"}
        self.integers: dict[str, str] = {}
        self.devices: set[str] = set()
        self.given_away: set[tuple[tuple[str, bool], ...]] = set()
        """Paths of attributes that forward has assigned: all others are read once, before anything is done."""
        self.locals = _assigned(forward) | set(self.arguments) | {self.module} | unseen
        self.steps: list[_Step] = []
        self.objects: list[str] = []
        self.slots = list(self.arguments)
        self.fresh: set[str] = set()
        """Names of memory that forward has made, which a second forward would make again."""
        self.is_begun = False
        """Whether a statement may have changed something that Python's forward would change again."""
        self.lines: list[str] = []
        self.temporaries: dict[str, str] = {}
        """Text of an unnamed value in the statement at hand -> its slot."""

    def text(self) -> str:
        *body, last = self.forward.body
        for statement in body:
            self._statement(statement)
        if not isinstance(last, ast.Return) or last.value is None:
            raise NoHost("forward does not end in one return")
        self._return(last.value)
        steps = [
            f'    {{{step.parent}, "{step.name}", {_cpp(step.is_number)}, {_cpp(step.is_tensor)}}},'
            for step in self.steps
        ]
        objects = "(" + "".join(f"{text}, " for text in self.objects) + ")"
        kinds = "".join(self.kinds[name] for name in self.arguments)
        slots = [
            f"{MARGIN}Tensor& v_{name} = c.slots[{place}];"
            for place, name in enumerate(self.slots)
            if name in self.tensors
        ]
        return "\n".join(
            [
                "namespace host {",
                "",
                "static const Step steps[] = {",
                *steps,
                '    {-1, "", false, false}};',
                "",
                '__attribute__((optimize("O1"))) static void forward(Call& c) {',
                *slots,
                *(MARGIN + line for line in self.lines),
                "}",
                "",
                "const Plan plan = {",
                f"    {_quoted(objects)},",
                f'    steps, {len(self.steps)}, "{kinds}", {len(self.slots)}, forward}};',
                "",
                "}  // namespace host",
                "#endif  // __CUDA_ARCH__",
                "",
            ]
        )

    # ------------------------------------------------------------------------------------------ statements

    def _statement(self, node: ast.stmt) -> None:
        self.temporaries = {}
        self.is_begun |= self._may_change(node)
        if isinstance(node, ast.AnnAssign):
            self._read(node)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], node.value)
        elif isinstance(node, ast.Expr):
            self._expression(node.value)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self.lines.append(f"{self._slot_of(target)}.drop();")
        elif isinstance(node, ast.If):
            self._check(node)
        elif not isinstance(node, ast.Pass):
            raise NoHost(f"line {node.lineno} of forward is a {type(node).__name__}")
        if self.temporaries:
            self.lines.append(" ".join(f"{slot}.drop();" for slot in self.temporaries.values()))

    def _may_change(self, node: ast.stmt) -> bool:
        """Whether a statement may do what Python's forward would do once more: it changes what it has not made, draws, or is not known."""
        if isinstance(node, (ast.If, ast.Delete, ast.AnnAssign, ast.Pass)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            return False
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func)
            outs = self.written.get(name.removeprefix(f"{self.native}."))
            given = [ast.unparse(one) for one in node.value.args]
            known = outs is not None and len(outs) - (self.device == "cuda") == len(given)
            return not known or any(out and one not in self.fresh for out, one in zip(outs or [], given, strict=False))
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            return True
        (target,) = node.targets
        if (
            isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "torch.empty"
            and isinstance(target, ast.Name)
        ):
            self.fresh.add(target.id)
            return False
        self.fresh -= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
        kinds = (ast.Name, ast.Tuple)
        return not isinstance(target, kinds) or not all(
            _is_pure(part) for part in ast.walk(node.value) if isinstance(part, ast.Call)
        )

    def _read(self, node: ast.AnnAssign) -> None:
        """`n: int = x.item()` or a size: an integer that the host waits for. What is none is Python's, while nothing has been done."""
        value = node.value
        if not isinstance(node.target, ast.Name) or value is None or ast.unparse(node.annotation) != "int":
            raise NoHost(f"line {node.lineno} of forward is a {type(node).__name__}")
        if self._is_integer(value):
            text = self._integer(value)
            self.lines.append(f"[[maybe_unused]] const int64_t v_{node.target.id} = {text};")
        else:
            asked = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "item"
            if not asked or self.is_begun or node.target.id in self.integers:
                raise NoHost(f"{ast.unparse(value)} is read of a tensor")
            found = self._python(value)
            self.lines.append(f"[[maybe_unused]] int64_t v_{node.target.id};")
            self._inside(f"v_{node.target.id} = c.number({found});")
        self.integers[node.target.id] = f"v_{node.target.id}"

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple):
            names = [part.id if isinstance(part, ast.Name) else "" for part in target.elts]
            if not all(names) or not isinstance(value, ast.Call):
                raise NoHost("several names are given something that is no call")
            found = self._python(value)
            outs = ["nullptr" if name == "_" else f"&{self._slot(name)}" for name in names]
            self._inside(f"c.take({found}, {{{', '.join(outs)}}});")
            return
        holder = self._path(target.value) if isinstance(target, ast.Attribute) else None
        if isinstance(target, ast.Attribute) and holder is not None:
            found = f"c.tuple({{{self._holder(holder)}, {self._object(repr(target.attr))}, {self._python(value)}}})"
            self.given_away.add((*holder, (target.attr, False)))
            self._inside(f"c.drop(c.call({self._object('setattr')}, {found}));")
            return
        if not isinstance(target, ast.Name):
            raise NoHost(f"forward assigns {ast.unparse(target)}")
        if _is_device(value, self.tensors):
            self.devices.add(target.id)
        elif self._is_integer(value):
            text = self._integer(value)
            known = target.id in self.integers
            self.integers[target.id] = f"v_{target.id}"
            self.lines.append(f"{'' if known else 'int64_t '}v_{target.id} = {text};")
        else:
            self._into(value, target.id)

    def _into(self, value: ast.expr, name: str) -> None:
        """The tensor `value` in the slot of `name`, which may be among what it is made of."""
        itself = any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(value))
        if name in self.tensors and itself and ast.unparse(value) != f"{name}.contiguous()":
            self.lines.append(f"{self.tensors[name]}.same({self._tensor(value)});")
            return
        if name in self.integers or name in self.devices or self.kinds.get(name, "t") != "t":
            raise NoHost(f"{name} is not always a tensor")
        made = f"v_{name}"
        self._make(value, made)
        self._slot(name)

    def _expression(self, value: ast.expr) -> None:
        if isinstance(value, ast.Constant):
            return
        if not isinstance(value, ast.Call):
            raise NoHost(f"forward computes {ast.unparse(value)} for nothing")
        function = value.func
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == self.native
        ):
            self._launch(function.attr, value)
        elif (
            isinstance(function, ast.Attribute)
            and function.attr == "copy_"
            and len(value.args) == 1
            and not value.keywords
        ):
            self.lines.append(f"c.copy({self._tensor(function.value)}, {self._tensor(value.args[0])});")
        else:
            found = self._python(value)
            self._inside(f"c.drop({found});")

    def _launch(self, name: str, call: ast.Call) -> None:
        if call.keywords or name.startswith("_"):
            raise NoHost(f"a kernel is called as {ast.unparse(call.func)} with names")
        arguments = [self._argument(argument) for argument in call.args]
        if self.device == "cuda":
            arguments.append("static_cast<cudaStream_t>(c.stream)")
        self.lines.append(f"::{name}({', '.join(arguments)});")

    def _argument(self, node: ast.expr) -> str:
        """As backends/model_new.py says that a call passes it."""
        if isinstance(node, ast.Constant) and node.value is None:
            return "Address{nullptr}"
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            return f"static_cast<float>({_double(node.value)})"
        if self._is_integer(node):
            return self._integer(node)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "ctypes"
        ):
            type = NUMBERS.get(node.func.attr)
            if type is None or len(node.args) != 1:
                raise NoHost(f"a kernel takes {ast.unparse(node)}")
            return f"static_cast<{type}>({self._number(node.args[0])})"
        return f"c.pointer({self._tensor(node)})"

    def _number(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            return _double(node.value)
        if isinstance(node, ast.Name) and self.kinds.get(node.id) == "n":
            return f"c.numbers[{self.arguments.index(node.id)}]"
        return self._integer(node)

    def _check(self, node: ast.If) -> None:
        """`if ...: raise ValueError("...")`, or `return self.method(...)` while nothing has been done: then Python's forward does it all."""
        (raised,) = node.body if len(node.body) == 1 else (None,)
        if _is_fallback(node, self.module) and not self.is_begun:
            self.lines.append(f"if ({self._condition(node.test)}) throw Otherwise{{}};")
            return
        if node.orelse or not isinstance(raised, ast.Raise) or not isinstance(raised.exc, ast.Call):
            raise NoHost("forward decides something")
        message = raised.exc.args[0] if len(raised.exc.args) == 1 else None
        if ast.unparse(raised.exc.func) != "ValueError" or not isinstance(message, ast.Constant):
            raise NoHost("forward raises something else than a ValueError with a text")
        self.lines.append(f"if ({self._condition(node.test)}) fail({_quoted(str(message.value))}, true);")

    def _condition(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return _cpp(node.value)
        if isinstance(node, ast.BoolOp):
            word = " || " if isinstance(node.op, ast.Or) else " && "
            return "(" + word.join(map(self._condition, node.values)) + ")"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"!({self._condition(node.operand)})"
        if isinstance(node, ast.Call) and not node.keywords:
            return self._asked(node)
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            raise NoHost(f"forward asks whether {ast.unparse(node)}")
        left, right = node.left, node.comparators[0]
        if isinstance(left, ast.Call) and ast.unparse(left.func) == "tuple" and len(left.args) == 1:
            left = left.args[0]
        differ = isinstance(node.ops[0], (ast.NotEq, ast.IsNot))
        if self._is_integer(left) and self._is_integer(right):
            comparisons = {ast.NotEq: "!=", ast.Eq: "==", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
            if type(node.ops[0]) in comparisons:
                return f"{self._integer(left)} {comparisons[type(node.ops[0])]} {self._integer(right)}"
        if differ and isinstance(left, ast.Attribute) and self._is_tensor(left.value):
            of = self._tensor(left.value)
            if left.attr == "shape" and isinstance(right, ast.Tuple):
                return f"!{of}.has({self._integers(right)})"
            if left.attr == "dtype":
                return f"{of}.dtype() != {_dtype(right)}"
            if left.attr == "layout" and ast.unparse(right) == "torch.strided":
                return f"{of}.layout() != 0"
        of_device = isinstance(left, ast.Attribute) and left.attr == "type" and _is_device(left.value, self.tensors)
        if differ and of_device and isinstance(right, ast.Constant) and right.value == self.device:
            return "false"  # of another device a tensor does not come this far
        if differ and isinstance(left, ast.Name) and self.kinds.get(left.id) == "o" and isinstance(right, ast.Constant):
            place = self.arguments.index(left.id)
            self._inside(f"if (c.differ(c.argument({place}), {self._object(right)})) throw Otherwise{{}};")
            return "false"
        raise NoHost(f"forward asks whether {ast.unparse(node)}")

    def _asked(self, node: ast.Call) -> str:
        """What run() in host.h has seen to already, or may ask an argument."""
        text, given = ast.unparse(node.func), node.args
        if text == "torch.is_autocast_enabled" and [ast.unparse(part) for part in given] == [repr(self.device)]:
            return "false"
        if text == "isinstance" and len(given) == 2 and isinstance(given[0], ast.Name):
            kind, wanted = self.kinds.get(given[0].id), ast.unparse(given[1])
            place = self.arguments.index(given[0].id) if kind else 0
            if (kind, wanted) == ("t", "torch.Tensor"):
                return "true"
            if (kind, wanted) == ("n", "float"):
                return f"type_of(c.given[{place}]) == &PyFloat_Type"
            if (kind, wanted) == ("o", "torch.Tensor"):
                return f"is_tensor(c.given[{place}])"
        raise NoHost(f"forward asks whether {ast.unparse(node)}")

    def _return(self, node: ast.expr) -> None:
        found = self._python(node)
        self.lines += ["c.enter();", f"c.returned = {found};"]

    def _inside(self, line: str) -> None:
        self.lines.append(f"{{ Inside inside(c); {line} }}")

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
        self.lines.append(f"c.empty({out}, {self._integers(node.args[0])}, {_dtype(named['dtype'])});")
        return True

    def _is_this_device(self, node: ast.expr) -> bool:
        return (isinstance(node, ast.Name) and node.id in self.devices) or _is_device(node, self.tensors)

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
            f"c.convolution({out}, {a}, {weight}, {self._optional(bias)}, {stride_}, {padding_}, {dilation_}, {_cpp(transposed)}, "
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
        inner = ", ".join(f"{{{_quoted(name)}, {self._python(value)}}}" for name, value in parts)
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


class _Listed(ast.NodeTransformer):
    """`args[2]` as an argument of its own, `len(args) != count` as False: run() in host.h has counted them."""

    def __init__(self, star: str, names: dict[int, str]) -> None:
        self.star, self.names, self.counts, self.places = star, names, set[int](), [-1]

    def name(self, place: int) -> str:
        return self.names.get(place, f"{self.star}__{place}")

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        count = node.comparators[0]
        if ast.unparse(node.left) != f"len({self.star})" or not isinstance(node.ops[0], ast.NotEq):
            return self.generic_visit(node)  # type: ignore[return-value]
        if not isinstance(count, ast.Constant) or type(count.value) is not int:
            raise NoHost(f"forward asks whether {ast.unparse(node)}")
        self.counts.add(count.value)
        return ast.Constant(False)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        whole = ast.unparse(node) == f"isinstance({self.star}, tuple)"
        return ast.Constant(True) if whole else self.generic_visit(node)  # type: ignore[return-value]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        place = _place_in(node, self.star)
        if place is None:
            return self.generic_visit(node)  # type: ignore[return-value]
        self.places.append(place)
        return ast.Name(self.name(place), ast.Load())


def _place_in(node: ast.expr, star: str) -> int | None:
    """Which of `*args` it is."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or node.value.id != star:
        return None
    if not isinstance(node.slice, ast.Constant) or type(node.slice.value) is not int:
        raise NoHost(f"forward reads {ast.unparse(node)}")
    return node.slice.value


def _list_arguments(forward: ast.FunctionDef, star: str) -> None:
    """Makes `*args`, of which forward asks how many there are, as many arguments, by the names that it gives them."""
    names, body = dict[int, str](), []
    for node in forward.body:
        place = _place_in(node.value, star) if isinstance(node, ast.Assign) else None
        if place is None or place in names or not isinstance(node.targets[0], ast.Name):  # type: ignore[attr-defined]
            body.append(node)
        else:
            names[place] = node.targets[0].id  # type: ignore[attr-defined]
    listed = _Listed(star, names)
    forward.body = [listed.visit(statement) for statement in body]
    if len(listed.counts) != 1 or max([*listed.places, *names]) >= min(listed.counts):
        raise NoHost(f"forward takes *{star} and does not ask how many those are")
    if set(names) & set(listed.places):
        raise NoHost(f"forward reads *{star} under two names")
    (count,) = listed.counts
    forward.args.args += [ast.arg(listed.name(place)) for place in range(count)]
    forward.args.vararg = None


class _LeftOut(ast.NodeTransformer):
    """What forward asks of arguments that are at their defaults: a call that names one does not come this far."""

    def __init__(self, defaults: dict[str, str]) -> None:
        self.defaults = defaults

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        is_default = self.defaults.get(ast.unparse(node.left)) == ast.unparse(node.comparators[0])
        return ast.Constant(False) if is_default and isinstance(node.ops[0], (ast.NotEq, ast.IsNot)) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        is_asked = ast.unparse(node) in {f"isinstance({name}, torch.Tensor)" for name in self.defaults}
        return ast.Constant(False) if is_asked else self.generic_visit(node)  # type: ignore[return-value]


def _leave_out_names(forward: ast.FunctionDef) -> None:
    """Arguments that only a name can give are at their defaults, which are constants."""
    pairs = zip(forward.args.kwonlyargs, forward.args.kw_defaults, strict=True)
    defaults = {argument.arg: ast.unparse(value) for argument, value in pairs if isinstance(value, ast.Constant)}
    if len(defaults) < len(forward.args.kwonlyargs):
        raise NoHost("forward takes what a call must name, or what no constant stands for")
    if forward.args.kwarg is not None:
        defaults[forward.args.kwarg.arg] = "{}"
    if defaults:
        forward.body = [_LeftOut(defaults).visit(statement) for statement in forward.body]


def _kind_of_argument(forward: ast.FunctionDef, name: str) -> str:
    """`n` where ctypes makes a number of it, `o` where it is compared or not used, else a tensor. What a fallback is given says nothing."""
    compared = False
    tensor = False
    parents = {child: parent for parent in ast.walk(forward) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(forward):
        if not isinstance(node, ast.Name) or node.id != name or not isinstance(node.ctx, ast.Load):
            continue
        parent = parents[node]
        if isinstance(parent, ast.Call) and ast.unparse(parent.func).startswith("ctypes.c_"):
            return "n"
        if isinstance(parent, ast.Call) and ast.unparse(parent.func) == "isinstance":
            continue
        holder = parents.get(parents.get(parent))  # type: ignore[arg-type]
        if isinstance(holder, ast.If) and _is_fallback(holder, forward.args.args[0].arg):
            continue
        if isinstance(parent, ast.Compare):
            compared = True
        else:
            tensor = True
    return "t" if tensor and not compared else "o"


def _is_fallback(node: ast.If, module: str) -> bool:
    """Whether it is `if ...: return self.method(...)`."""
    (done,) = node.body if len(node.body) == 1 else (None,)
    if node.orelse or not isinstance(done, ast.Return) or not isinstance(done.value, ast.Call):
        return False
    function = done.value.func
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == module


def _is_pure(call: ast.Call) -> bool:
    """Whether a call makes a view or a copy of a tensor, or is an operator of torch that draws nothing and changes nothing."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in VIEWS:
        return True
    operator = re.fullmatch(r"torch\.ops\.aten\.(\w+)\.(\w+)", ast.unparse(call.func))
    return (
        operator is not None
        and not any(word in operator[1] or word == operator[2] for word in CHANGING)
        and not operator[1].endswith("_")
    )


def _assigned(forward: ast.FunctionDef) -> set[str]:
    return {n.id for n in ast.walk(forward) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _is_device(node: ast.expr, tensors: dict[str, str]) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "device"
        and isinstance(node.value, ast.Name)
        and node.value.id in tensors
    )


def _dtype(node: ast.expr) -> int:
    text = ast.unparse(node)
    if not text.startswith("torch.") or text.removeprefix("torch.") not in DTYPES:
        raise NoHost(f"the type {text} has no number")
    return DTYPES[text.removeprefix("torch.")]


def _cpp(value: bool) -> str:
    return "true" if value else "false"


def _double(value: float) -> str:
    if value != value or value in (float("inf"), -float("inf")):
        raise NoHost(f"a kernel takes the number {value}")
    return repr(value)


def _quoted(text: str) -> str:
    """A C++ literal, in pieces that compilers take."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("?", "\\?")
    pieces = re.findall(r"(?:\\.|[^\\]){1,400}", plain, re.DOTALL) or [""]
    return " ".join(f'"{piece}"' for piece in pieces)
