"""From a problem's text to a candidate's: the steps of the folder's docstring, one after another."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import torch
from torch.export.graph_signature import InputKind, OutputKind

from . import lower_losses, lower_norms, lower_pointwise, lower_products, lower_reductions, lower_views, lower_windows  # noqa: F401 -- they fill the table
from .algebra import prepared
from .cells import cells_as_layers
from .counters import SUFFIX, count_name
from .drafted import Drafted
from .exported import Exported, export, hints
from .expressions import COMPUTED, NothingOwn, constant, loads_of, make
from .library import index_text, tensor_text
from .lower_recurrent import own_layers
from .lowering import lower, shape_of, size_of
from .module import (
    MODES,
    Forward,
    constructors,
    future_imports,
    has_attribute,
    left_lines,
    methods_text,
    parameter_text,
    resolved,
    shape_text,
    structure_text,
)
from .names import RESERVED, in_c
from .numerics import Numerics, exact_nodes, nodes_that_decide, read_by_convolutions
from .partition import PLANES, TILE, Kernel, Partition, kernel_name, libraries_of, reads_before, reads_of
from .sources import Native, natives, source
from .split import split_folds
from .tensors import Buffer, NoDraft, Program, SizeNeeded, Value
from .unrolled import followed

CONSTANTS = {"cuda": "CUDA_SOURCE", "cpu": "CPP_SOURCE"}
CHANGED = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


def drafted(problem: str, device: str, dtype: str | None = None, numerics: str = "eager") -> Drafted:
    if numerics not in get_args(Numerics):
        raise ValueError(f"numerics is {numerics!r}; it is eager or fp32")
    if device not in CONSTANTS:
        raise ValueError(f"device is {device!r}; a draft is for cuda or cpu")
    problem = problem.removeprefix("\ufeff")
    try:
        exported = export(problem, getattr(torch, dtype) if dtype else None, device=device)
        return _drafted(problem, device, exported, dtype, numerics)
    except SizeNeeded as needed:
        try:
            fixed = export(problem, getattr(torch, dtype) if dtype else None, device=device, fixed=True)
            return _drafted(problem, device, fixed, dtype, numerics)
        except SizeNeeded:
            raise needed from None


def _drafted(problem: str, device: str, exported: Exported, dtype: str | None, numerics: str) -> Drafted:
    graph = exported.graph.graph
    rounds = device == "cuda" and numerics == "eager"
    rules = cells_as_layers(graph)
    rules += own_layers(graph, rounds=rounds) if device == "cuda" else []
    rules += followed(problem, exported, getattr(torch, dtype) if dtype else None)
    exact = (exact_nodes(graph) if rounds else set()) | nodes_that_decide(graph)
    try:
        return _Draft(problem, device, exported, rules, numerics, exact).result()
    except NothingOwn:
        rules += own_layers(graph, always=True, rounds=rounds)
    for kept in [exact, set()] if exact else [set()]:
        try:
            return _Draft(problem, device, exported, rules, numerics, kept, own_products=True).result()
        except NothingOwn:
            if not kept:
                raise
    raise AssertionError("the last one either returns or raises")


class _Draft:
    def __init__(
        self,
        problem: str,
        device: str,
        exported: Exported,
        rules,
        numerics: str,
        exact: set,
        own_products: bool = False,
    ) -> None:
        self.problem, self.device, self.exported = problem, device, exported
        self.program = Program(hints(exported))
        self.program.supposed, self.program.call = list(exported.supposed), exported.call
        self.program.foreign.add(torch.float8_e4m3fn)
        self.program.device, self.program.own_products, self.rules = device, own_products, rules
        self.program.numerics, self.program.exact = numerics, exact
        self.program.draws = exported.draws
        if device == "cuda" and numerics == "eager":
            self.program.rounded = read_by_convolutions(exported.graph.graph) | exact
        self.program.reserve([*exported.arguments, *(in_c(name) for name in exported.arguments), *RESERVED])
        self.values: dict[torch.fx.Node, Value] = {}
        self.opened: list[str] = []
        """Names of what lies in lists, tuples and dicts."""
        self.kinds: list[str] = []
        """What the draft is for, before anything is read of an input: types, ranks, devices."""
        self.head: list[str] = []
        self.sizes: list[str] = []
        """The same of sizes, behind `head`: one may be named by an input that comes later."""
        self.made_contiguous: list[str] = []
        self.tail: list[str] = []
        self.changed = {spec.target for spec in exported.graph.graph_signature.output_specs} | exported.changed
        self.weights: dict[str, torch.dtype] = {}
        """Parameters, and what is prepared of them, as forward calls them."""
        self.inputs: dict[str, str] = {}
        """Tensors that come in, by their placeholders' names, as forward calls them."""
        self.overwritten: set[str] = set()
        """Texts of what forward changes in place at its end."""
        self.moved_shapes: dict[str, tuple] = {}
        """Of what forward changes in place, by its text: what replaces it may lie in memory under another shape."""
        self.assigned: dict[Buffer, str] = {}
        """What becomes an attribute of the module, which is no buffer."""

    def result(self) -> Drafted:
        graph = self.exported.graph.graph
        self._placeholders(graph)
        self._prepare(graph)
        lower(self.program, graph, self.values)
        if self.program.supposed:
            raise NoDraft("the module asks for sizes that depend on values before anything has them")
        returned, moved = self._returned(graph)
        split_folds(self.program)
        kept = [value.buffer for value in returned if isinstance(value, Value) and value.buffer]
        outputs = {*kept, *(buffer for buffer, _ in moved), *self.assigned}
        partition = Partition(self.program, outputs)
        kernels = [step for step in partition.steps if isinstance(step, Kernel)]
        for kernel in kernels:
            kernel.name = self.program.name(kernel_name(kernel))
        if not any(loads_of(kernel.roots) for kernel in kernels):  # to fill memory with zeros is no work
            raise NothingOwn(
                f"every operator of the module stays with a library: {', '.join(libraries_of(partition)) or 'none'}"
            )
        in_place = self._in_place(partition, moved)
        for buffer, target in in_place.items():
            buffer.text = target
        made = natives(partition, self.device)
        forward = Forward(partition, dict(zip(kernels, made, strict=True)), in_place)
        forward.steps(outputs)
        for buffer, target in moved:
            if buffer not in in_place:
                shape = self.moved_shapes[target]
                view = "" if shape == buffer.shape else f".view({', '.join(map(index_text, shape))})"
                leaf = ".detach()" if target in self.weights else ""  # of torch's gradients
                forward.lines.append(f"{target}{leaf}.copy_({buffer.text}{view})")
        forward.lines += [f"{target} = {buffer.text}" for buffer, target in self.assigned.items()]
        leaves = [resolved(self._leaf(value), self.program.buffers) for value in returned]
        spec = self.exported.graph.call_spec.out_spec
        if self.exported.left.places:  # forward's own are the first of two
            spec = spec.children()[0]
        text, classes = structure_text(leaves[: spec.num_leaves], spec)
        forward.lines += left_lines(self.exported.model, self.exported.left, leaves[spec.num_leaves :])
        before = [
            *self.opened,
            *self._other_kinds(forward.lines),
            *self.head,
            *self._other_sizes(),
            *self.made_contiguous,
            *(["state = random_state(device)"] if "random_state" in self.program.helpers else []),
        ]
        lines = [*before, *forward.lines, *self.tail, f"return {text}"]
        products = [kernel.members[0].definition for kernel in kernels if kernel.layout in (TILE, PLANES)]
        tiles = ["halves" if product.tiling.halves else product.origin for product in products]
        return Drafted(self._text(made, lines, classes), made, self.rules, libraries_of(partition), tiles)

    # ------------------------------------------------------------------------------------------ what comes in

    def _placeholders(self, graph: torch.fx.Graph) -> None:
        nodes = {node.name: node for node in graph.nodes if node.op == "placeholder"}
        user = [s for s in self.exported.graph.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
        for text, value in self.exported.holders:
            kind = self._builtin(next(kind.__name__ for kind in (list, tuple, dict) if isinstance(value, kind)))
            inside = (
                f"{text}.keys() != {{{', '.join(map(repr, value))}}}"
                if kind == "dict" and value
                else f"{self._builtin('len')}({text}) != {len(value)}"
            )
            self.opened += self._otherwise(self._is_no(text, kind), inside)
        for name, default in self.exported.left_out.items():
            self.kinds.append(f"{name} is not {default}" if default[0] in "NTF" else self._differs(name, default))
        for path, choice in self.exported.settled.items():
            self.kinds.append(f"{self._attribute(path)} is not {choice}")
        for place, spec in enumerate(user):
            node = nodes[spec.arg.name]
            self._input(place, node)
        for spec in self.exported.graph.graph_signature.input_specs:
            if spec.kind == InputKind.USER_INPUT:
                continue
            if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                raise NoDraft(
                    f"the module holds a {spec.kind.name.lower()} named {spec.target}, which has no place in a draft"
                )
            node = nodes[spec.arg.name]
            self.values[node] = self._held(node, spec)
        self.takes_tensors = bool(self.inputs)
        if not self.takes_tensors:
            if not self.weights:
                raise NoDraft("the module takes no tensor")
            weight = next(iter(self.weights))
            self.head.insert(0, f"device = {weight}.device")
            self.kinds.append(f'{weight}.device.type != "{self.device}"')

    def _prepare(self, graph: torch.fx.Graph) -> None:
        """What is computed of weights alone is computed by the constructor."""
        specs = {spec.arg.name: spec for spec in self.exported.graph.graph_signature.input_specs}
        held, changing = {}, set()
        for node, value in self.values.items():
            spec = specs[node.name]
            of_model = spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)
            if (
                of_model
                and not self.exported.settled
                and value.buffer is not None
                and spec.target not in self.exported.attributes
            ):
                held[node] = value.buffer.text if value.is_whole else parameter_text(self.exported.model, spec.target)
                if spec.target in self.changed:
                    changing.add(node)
        for node, (text,) in prepared(graph, held, changing).items():
            meta = node.meta["val"]
            buffer = self.program.allocate(shape_of(meta), meta.dtype, f"prepared_{node.name}")
            buffer.text = f"self.{buffer.name}"
            self.program.kept.append(
                f'self.register_buffer("{buffer.name}", {text}.detach().contiguous(), persistent=False)'
            )
            self.program.weights.add(buffer)
            self.weights[buffer.text] = buffer.dtype
            self.values[node] = self.program.whole(buffer, origin=node.name)

    def _input(self, place: int, node: torch.fx.Node) -> None:
        name, value = self.exported.leaves[place].text, node.meta.get("val")
        if place in self.exported.fixed:
            constant = self.exported.fixed[place]
            self.kinds.append(f"{name} is not None" if constant is None else self._differs(name, repr(constant)))
            return
        if not name.isidentifier():
            local = self.program.name(name)
            self.opened.append(f"{local} = {name}")
            name = local
        inside = in_c(name)
        if place in self.exported.floats:
            self.kinds.append(self._is_no(name, self._builtin("float")))
            self.values[node] = self._scalar(inside, name)
            return
        buffer = Buffer(inside, shape_of(value), value.dtype, name)
        self.program.buffers.append(buffer)
        if not any("device = " in line for line in self.head):
            self.head.insert(0, f"device = {name}.device")
        self.inputs[node.name] = name
        known = {line.split(" = ")[0] for line in self.head}
        for axis, size in enumerate(buffer.shape):
            if size.is_Symbol and str(size) not in known:
                self.head.append(f"{size} = {name}.shape[{axis}]")
                known.add(str(size))
        kinds = [
            self._is_no(name, "torch.Tensor"),
            f'{name}.device.type != "{self.device}"',
            f"{name}.layout != torch.strided",
            f"{name}.dtype != {buffer.dtype}",
            f"{name}.dim() != {len(buffer.shape)}",
        ]
        self.kinds.append(" or ".join(kinds))
        if buffer.shape:
            self.sizes.append(f"{name}.shape != {shape_text(buffer.shape)}")
        self.made_contiguous.append(f"{name} = {name}.contiguous()")
        self.values[node] = self.program.whole(buffer, origin=name)

    def _scalar(self, inside: str, name: str) -> Value:
        """A number that the call brings."""
        self.program.scalars[inside] = name
        return self.program.formula((), torch.float64, lambda position: make("scalar", inside, type="double"), name)

    def _attribute(self, path: str) -> str:
        part, _, name = path.rpartition(".")
        return f"{parameter_text(self.exported.model, part)}.{name}"

    def _held(self, node: torch.fx.Node, spec) -> Value:
        """A parameter, a buffer or a tensor attribute of the module."""
        value = node.meta["val"]
        path = spec.target.removesuffix(SUFFIX)
        if path in self.exported.left.counts:
            return self._scalar(count_name(path), count_name(path))
        number = self.exported.graph.constants.get(spec.target)
        if spec.kind == InputKind.CONSTANT_TENSOR and not has_attribute(self.exported.model, spec.target):
            return self._number(spec.target, number)
        text = parameter_text(self.exported.model, spec.target)
        order = list(range(value.dim()))
        if spec.target not in self.changed:  # as it lies in memory, that of a transposed one included
            order.sort(key=lambda axis: -value.stride()[axis])
        shape = shape_of(value)
        buffer = self.program.allocate([shape[axis] for axis in order], value.dtype, spec.target.replace(".", "_"))
        stays = spec.kind == InputKind.CONSTANT_TENSOR or spec.target in self.exported.attributes
        buffer.text = f"{text}.to(device)" if stays else text  # an attribute that Model.to() leaves where it is
        if not value.is_contiguous():
            moved = "" if order == sorted(order) else f".permute({', '.join(map(str, order))})"
            buffer.text += f"{moved}.contiguous()"
        elif stays:
            self.program.elsewhere[buffer] = text
        if spec.kind == InputKind.PARAMETER:
            self.program.weights |= set() if spec.target in self.changed else {buffer}
            self.weights[text] = value.dtype
        whole = self.program.whole(buffer, origin=buffer.name)
        if order == sorted(order):
            return whole
        strides = [whole.strides[order.index(axis)] for axis in range(value.dim())]
        return self.program.strided(whole, shape, strides, whole.offset)

    def _number(self, name: str, number: torch.Tensor | None) -> Value:
        """A tensor that forward makes of numbers in its text: one number is a constant, more are kept by the module."""
        if number is None or number.is_meta:
            raise NoDraft(f"forward makes the tensor {name} of numbers that the export does not show")
        if number.dim() == 0 and number.dtype in COMPUTED:
            value = constant(number.item(), COMPUTED[number.dtype])
            return self.program.formula((), number.dtype, lambda position: value, name)
        buffer = self.program.allocate(shape_of(number), number.dtype, name.replace(".", "_"))
        buffer.text = f"self.{buffer.name}"
        made = f"torch.tensor({number.tolist()!r}, dtype={number.dtype})"
        self.program.kept.append(f'self.register_buffer("{buffer.name}", {made}, persistent=False)')
        return self.program.whole(buffer, origin=buffer.name)

    # ------------------------------------------------------------------------------------------ what goes out

    def _returned(self, graph: torch.fx.Graph) -> tuple[list[Value | str], list[tuple[Buffer, str]]]:
        """The user's outputs, in memory or as text; and buffers that replace what the module keeps or was given, with its name."""
        (node,) = [n for n in graph.nodes if n.op == "output"]
        specs = self.exported.graph.graph_signature.output_specs
        returned: list[Value | str] = []
        moved, counted = [], []
        for spec in specs:
            if spec.kind in CHANGED and spec.target not in self.exported.attributes:
                self.overwritten.add(parameter_text(self.exported.model, spec.target))
            elif spec.kind == OutputKind.USER_INPUT_MUTATION:
                self.overwritten.add(self.inputs[spec.target])
        for spec, argument in zip(specs, node.args[0], strict=True):
            if spec.kind in CHANGED:
                target = parameter_text(self.exported.model, spec.target)
                if _is_count(argument):
                    counted.append(target)
                elif spec.target in self.exported.attributes:
                    self.assigned[self._own(self._value(argument))] = target
                else:
                    value = self._value(argument)
                    if (
                        value.buffer is None or value.buffer.text != target or not value.is_whole
                    ):  # else the library has changed it
                        self.moved_shapes[target] = value.shape
                        moved.append((self.program.realise(self._apart(value)), target))
            elif spec.kind == OutputKind.USER_INPUT_MUTATION:
                name = self.inputs[spec.target]
                if f"{name} = {name}.contiguous()" in self.made_contiguous:  # what changes is what was given
                    given = self.program.name(f"{name}_given")
                    self.opened.append(f"{given} = {name}")
                    name = given
                self.moved_shapes[name] = self._value(argument).shape
                moved.append((self.program.realise(self._apart(self._value(argument))), name))
            elif spec.kind == OutputKind.USER_OUTPUT:
                returned.append(self._user_output(argument))
            else:
                raise NoDraft(f"the module changes {spec.target} in place ({spec.kind.name.lower()})")
        if counted:
            self.tail.append(f"torch._foreach_add_([{', '.join(counted)}], 1)")
        return returned, moved

    def _user_output(self, argument) -> Value | str:
        if not isinstance(argument, torch.fx.Node):
            if isinstance(argument, (bool, int, float, str, type(None))):
                return repr(argument)
            raise NoDraft(f"the module returns a {type(argument).__name__}, which has no text in a candidate")
        size = argument.meta.get("val")
        if isinstance(size, torch.SymInt):
            return index_text(size_of(size))
        return self._output(self._apart(self._value(argument)))

    def _apart(self, value: Value) -> Value:
        """The value in memory of its own where it lies in what is overwritten before forward returns."""
        if value.buffer is None or value.buffer.written_by is not None or value.buffer.text not in self.overwritten:
            return value
        return self.program.formula(value.shape, value.dtype, value.at, value.origin)

    def _value(self, argument) -> Value:
        if not isinstance(argument, torch.fx.Node) or not isinstance(self.values.get(argument), Value):
            raise NoDraft("the module returns something that is no tensor")
        return self.values[argument]

    def _output(self, value: Value) -> Value:
        if value.buffer is None or (not value.is_whole and value.buffer.written_by is None):
            self.program.realise(value)
        return value

    def _own(self, value: Value) -> Buffer:
        """Memory of the draft's own that holds exactly the value."""
        if value.buffer is None or value.buffer.written_by is not None:
            return self.program.realise(value)
        copied = self.program.formula(value.shape, value.dtype, value.at, value.origin)
        return self.program.realise(copied)

    def _leaf(self, value: Value | str) -> str:
        if isinstance(value, str):
            return value
        text = tensor_text(self.program, value)
        return text if value.buffer is not None and value.buffer.written_by else f"{text}.clone()"

    def _in_place(self, partition: Partition, moved: list[tuple[Buffer, str]]) -> dict[Buffer, str]:
        """Buffers that a kernel may write where the module keeps the old ones: nobody else reads those, and it reads before it writes."""
        found = {}
        made = Counter(buffer for buffer, _ in moved)
        for buffer, target in moved:
            readers = [
                step for step in partition.steps
                for read in reads_of(step) if read.text == target
            ]  # fmt: skip
            makers = [step for step in partition.steps if isinstance(step, Kernel) and buffer in step.made]
            if (
                makers
                and readers == makers
                and made[buffer] == 1
                and all(reads_before(step, buffer, target) for step in makers)
            ):
                found[buffer] = target
        return found

    def _builtin(self, word: str) -> str:
        """Python's own function or type; forward's arguments may have any name."""
        return f'__import__("builtins").{word}' if word in self.exported.arguments else word

    def _is_no(self, text: str, kind: str) -> str:
        return f"not {self._builtin('isinstance')}({text}, {kind})"

    def _differs(self, name: str, constant: str) -> str:
        """A tensor in a number's place would answer with a tensor."""
        return f"{self._builtin('isinstance')}({name}, torch.Tensor) or {name} != {constant}"

    def _otherwise(self, *conditions: str) -> list[str]:
        """For what the draft was not made for, the module's own operators answer, or say what is wrong."""
        if not conditions:
            return []
        first, *more = conditions
        return [
            "if (",
            f"    {first}",
            *(f"    or {c}" for c in more),
            "):",
            f"    return self.as_written({self.exported.call})",
        ]

    def _other_kinds(self, lines: list[str]) -> list[str]:
        """One weight of each type that `lines` read says what the others are: a module is cast as a whole."""
        read = {dtype: text for text, dtype in reversed(self.weights.items()) if any(text in line for line in lines)}
        weights = [f"{text}.dtype != {dtype}" for dtype, text in read.items()]
        return self._otherwise(*self.kinds, *weights, f'torch.is_autocast_enabled("{self.device}")')

    def _other_sizes(self) -> list[str]:
        """Also those for which the module would go another way than the graph."""
        limits = [f"not ({' and '.join(self.exported.limits)})"] if self.exported.limits else []
        return self._otherwise(*self.sizes, *limits)

    # ------------------------------------------------------------------------------------------ text

    def _text(self, made: list[Native], lines: list[str], classes: set[str]) -> str:
        changing = bool(self.exported.supposed or self.exported.settled)
        before, model = constructors(self.problem, self.program.kept, classes, changing)
        helpers = "".join(f"\n\n{text}" for text in self.program.helpers.values())
        native_source = source(made, self.device)
        scalars = any("ctypes." in line for line in lines)
        imports = ["import ctypes"] * scalars + ["import torch"] * ("import torch\n" not in before)
        counts = [(self._attribute(path), count_name(path), count) for path, count in self.exported.left.counts.items()]
        methods = methods_text(self.exported.signature, self.exported.call, lines, counts)
        if self.exported.modal and type(self.exported.model).train is torch.nn.Module.train:
            methods += MODES.format(self.exported.model.training)
        future, before = future_imports(before)
        return (
            "".join(line + "\n" for line in [*future, *imports])
            + before
            + f"\n\n{CONSTANTS[self.device]} = r'''\n{native_source}'''\n"
            f"native = load_native(globals())\n{helpers}\n\n{model}\n\n{methods}"
        )


def _is_count(node: torch.fx.Node) -> bool:
    """Whether it is a buffer of the module plus one: how many batches were seen."""
    if str(node.target) != "aten.add.Tensor" or node.args[1:] != (1,) or node.kwargs:
        return False
    return (
        node.args[0].op == "placeholder"
        and len(node.users) == 1
        and len(node.args[0].users) == 1
        and node.meta["val"].dim() == 0
    )
