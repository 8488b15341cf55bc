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
from pathlib import Path

from harness.problems.host_arguments import is_fallback, kind_of_argument, leave_out_names, list_arguments
from harness.problems.host_values import (
    VIEWS,
    HostValues,
    NoHost,
    cpp_bool,
    double_text,
    is_device,
    number_of_dtype,
    quote,
)

HEADER = Path(__file__).with_suffix(".h")
NUMBERS = {
    "c_double": "double", "c_float": "float", "c_int": "int32_t", "c_int32": "int32_t", "c_int64": "int64_t", "c_longlong": "int64_t",
    "c_uint32": "uint32_t", "c_uint64": "uint64_t",
}  # fmt: skip
CHANGING = (
    "rand", "drop", "bernoulli", "normal", "exponential", "multinomial", "uniform", "poisson", "geometric", "cauchy", "rrelu", "batch_norm",
    "lstm", "gru", "rnn", "copy", "set", "out", "resize",
)  # fmt: skip
"""Words in the names of operators that draw numbers, or may change what they are given."""
MARGIN = "    "


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


class _Translation(HostValues):
    """Statements one after another."""

    def __init__(self, forward: ast.FunctionDef, native: str, device: str, written: dict[str, list[bool]]) -> None:
        given, star = forward.args, forward.args.vararg
        unseen = {argument.arg for argument in [star, given.kwarg, *given.kwonlyargs] if argument}
        if star is not None:
            list_arguments(forward, star.arg)
        leave_out_names(forward)
        if not given.args:
            raise NoHost("forward takes no module")
        module, *arguments = [argument.arg for argument in [*given.posonlyargs, *given.args]]
        kinds = {name: kind_of_argument(forward, name) for name in arguments}
        super().__init__(module, kinds, _assigned(forward) | unseen, native, device)
        self.forward, self.written = forward, written
        self.fresh: set[str] = set()
        """Names of memory that forward has made, which a second forward would make again."""
        self.is_begun = False
        """Whether a statement may have changed something that Python's forward would change again."""

    def text(self) -> str:
        *body, last = self.forward.body
        for statement in body:
            self._statement(statement)
        if not isinstance(last, ast.Return) or last.value is None:
            raise NoHost("forward does not end in one return")
        self._return(last.value)
        steps = [
            f'    {{{step.parent}, "{step.name}", {cpp_bool(step.is_number)}, {cpp_bool(step.is_tensor)}}},'
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
                f"    {quote(objects)},",
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
        if is_device(value, self.tensors):
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
            return f"static_cast<float>({double_text(node.value)})"
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
            return double_text(node.value)
        if isinstance(node, ast.Name) and self.kinds.get(node.id) == "n":
            return f"c.numbers[{self.arguments.index(node.id)}]"
        return self._integer(node)

    def _check(self, node: ast.If) -> None:
        """`if ...: raise ValueError("...")`, or `return self.method(...)` while nothing has been done: then Python's forward does it all."""
        (raised,) = node.body if len(node.body) == 1 else (None,)
        if is_fallback(node, self.module) and not self.is_begun:
            self.lines.append(f"if ({self._condition(node.test)}) throw Otherwise{{}};")
            return
        if node.orelse or not isinstance(raised, ast.Raise) or not isinstance(raised.exc, ast.Call):
            raise NoHost("forward decides something")
        message = raised.exc.args[0] if len(raised.exc.args) == 1 else None
        if ast.unparse(raised.exc.func) != "ValueError" or not isinstance(message, ast.Constant):
            raise NoHost("forward raises something else than a ValueError with a text")
        self.lines.append(f"if ({self._condition(node.test)}) fail({quote(str(message.value))}, true);")

    def _condition(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return cpp_bool(node.value)
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
                return f"{of}.dtype() != {number_of_dtype(right)}"
            if left.attr == "layout" and ast.unparse(right) == "torch.strided":
                return f"{of}.layout() != 0"
        of_device = isinstance(left, ast.Attribute) and left.attr == "type" and is_device(left.value, self.tensors)
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
