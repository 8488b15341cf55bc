"""The candidate's Python text: the problem's constructors, the native sources, a forward pass that calls them."""

from __future__ import annotations

import ast
import dataclasses
import re
import symtable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .attributes import Left
from .block_groups import MEETING_WORDS
from .index import Index
from .library import index_text
from .partition import Kernel, Partition
from .sources import Native
from .tensors import Buffer, Library, NoDraft

Step = Kernel | Library


class Forward:
    """Lines of `forward`: sizes, checks, one line or two for each step, what is returned."""

    def __init__(self, partition: Partition, natives: dict[Kernel, Native], in_place: dict[Buffer, str]) -> None:
        self.partition, self.natives, self.in_place = partition, natives, in_place
        self.lines: list[str] = []

    def steps(self, kept: set[Buffer]) -> None:
        """Every step; what no later one reads is let go, as eager lets it go."""
        steps = self.partition.steps
        last: dict[Buffer, int] = {}
        for place, step in enumerate(steps):
            for buffer in self._buffers(step):
                last[buffer] = place
        for place, step in enumerate(steps):
            if isinstance(step, Library):
                self._library(step)
            else:
                self._kernel(step)
            gone = [
                b.name
                for b, at in last.items()
                if at == place and b.written_by and b not in kept and b not in self.in_place
            ]
            if gone and place < len(steps) - 1:
                self.lines.append(f"del {', '.join(sorted(gone))}")

    def _buffers(self, step: Step) -> list[Buffer]:
        if isinstance(step, Library):
            return [*step.reads, *(out for out in step.outs if out is not None)]
        return [b for b in self.partition.program.buffers if b.name in self.natives[step].arguments]

    def _library(self, step: Library) -> None:
        text = resolved(step.text, self.partition.program.buffers)
        self._call(step, text)
        self.lines += [resolved(line, self.partition.program.buffers) for line in step.after]

    def _call(self, step: Library, text: str) -> None:
        if not step.outs:
            return
        if step.single:
            (out,) = step.outs
            assert out is not None
            self.lines.append(f"{out.name} = {text}.contiguous()")
            return
        names = ", ".join("_" if out is None else out.name for out in step.outs)
        self.lines.append(f"{names} = {text}")
        for out in step.outs:
            if out is not None:
                self.lines.append(f"{out.name} = {out.name}.contiguous()")

    def _kernel(self, step: Kernel) -> None:
        native = self.natives[step]
        made = {b.name: b for b in step.made}
        for name in native.arguments:
            if name in made and made[name] not in self.in_place:
                self.lines.append(f"{name} = {empty_text(made[name])}")
        if native.meeting:
            self.lines.append(f"{native.meeting} = torch.empty(({MEETING_WORDS},), dtype=torch.int32, device=device)")
        texts = {b.name: self.in_place.get(b, b.text) for b in self.partition.program.buffers}
        numbers = set(native.scalars)
        arguments = [
            f"ctypes.c_double({self.partition.program.scalars[name]})" if name in numbers else texts.get(name, name)
            for name in native.arguments
        ]
        self.lines.append(f"native.{native.name}({', '.join(arguments)})")


def empty_text(buffer: Buffer) -> str:
    return f"torch.empty({shape_text(buffer.shape)}, dtype={buffer.dtype}, device=device)"


def resolved(text: str, buffers: list[Buffer]) -> str:
    """Placeholders `{name}` of a call's text as what the code calls them."""
    texts = {buffer.name: buffer.text for buffer in buffers}
    return re.sub(r"\{(\w+)\}", lambda match: texts[match[1]], text)


def structure_text(texts: list[str], spec: pytree.TreeSpec) -> tuple[str, set[str]]:
    """The returned tuple, list, dict, dataclass or tensor with the leaves' texts; and the problem's classes that this names."""
    classes: set[str] = set()
    return _structure(pytree.tree_unflatten(texts, spec), classes), classes


def _structure(tree: Any, classes: set[str]) -> str:
    if isinstance(tree, str):
        return tree
    kind, name = type(tree), _class_text(type(tree), classes)
    if isinstance(tree, tuple):
        parts = [_structure(part, classes) for part in tree]
        if hasattr(kind, "_fields"):
            return f"{name}({', '.join(parts)})"
        text = f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    elif isinstance(tree, list):
        text = f"[{', '.join(_structure(part, classes) for part in tree)}]"
    elif isinstance(tree, dict):
        text = "{" + ", ".join(f"{key!r}: {_structure(value, classes)}" for key, value in tree.items()) + "}"
    elif dataclasses.is_dataclass(tree):
        fields = [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
        return f"{name}({', '.join(f'{key}={_structure(value, classes)}' for key, value in fields)})"
    else:
        raise NoDraft(f"the module returns a {kind.__name__}, which has no text in a candidate")
    return text if kind in (tuple, list, dict) else f"{name}({text})"


def call_text(function: str, given: Any, named: dict[str, Any]) -> str:
    """A call whose arguments are nests of texts."""
    parts = [_structure(one, set()) for one in given] + [
        f"{name}={_structure(one, set())}" for name, one in named.items()
    ]
    return f"{function}({', '.join(parts)})"


def left_lines(model: torch.nn.Module, left: Left, leaves: list[str]) -> list[str]:
    """What forward leaves in attributes; `leaves` are the texts of all of it."""
    lines = []
    for place, spec in zip(left.places, left.specs, strict=True):
        text, _ = structure_text(leaves[: spec.num_leaves], spec)
        lines.append(f"{place.text(parameter_text(model, place.path))} = {text}")
        leaves = leaves[spec.num_leaves :]
    return lines


MODES = """
    def train(self, mode=True):
        super().train(mode)
        if mode is {}:
            self.__dict__.pop("forward", None)
        else:
            self.__dict__["forward"] = self.as_written
        return self
"""
"""Behind eval(), in the other mode than it was drafted in, the module's own forward answers."""


def methods_text(signature: str, call: str, lines: list[str], counts: list[tuple[str, str, Any]]) -> str:
    """Forward, whose body is `lines`. `counts`: text, argument and next value of each attribute that is counted: then a method `counted` is what
    is drafted, and forward counts behind it."""
    itself, _, more = signature.partition(",")
    arguments = [itself, *(name for _, name, _ in counts), *([more.strip()] if more else [])]
    name = "counted" if counts else "forward"
    text = f"    @native.host\n    def {name}({', '.join(arguments)}):\n"
    if not counts:
        return text + "".join(f"        {line}\n" for line in lines)
    text += "".join(f"        {line.replace('self.as_written(', 'self.not_counted(')}\n" for line in lines)
    given = ", ".join([*(f"float({attribute})" for attribute, _, _ in counts), *([call] if call else [])])
    attributes = ", ".join(attribute for attribute, _, _ in counts)
    after = ", ".join(count.text.format(attribute) for attribute, _, count in counts)
    return (
        f"{text}\n    def not_counted(self, *_, **__):\n        return None\n\n    def forward({signature}):\n"
        f"        made = self.counted({given})\n        if made is None:\n            return self.as_written({call})\n"
        f"        {attributes} = {after}\n        return made\n"
    )


def _class_text(kind: type, classes: set[str]) -> str:
    if kind.__module__ == "problem":
        classes.add(kind.__name__)
        return kind.__name__
    if kind.__module__ == "torch.return_types":
        return f"torch.return_types.{kind.__name__}"
    return f"__import__('importlib').import_module({kind.__module__!r}).{kind.__qualname__}"


def parameter_text(model: torch.nn.Module, path: str) -> str:
    """The attribute path of a parameter, a buffer or a part in Python."""
    text, holder = "self", model
    for part in filter(None, path.split(".")):
        lists = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ParameterList)
        names = [*holder._modules, *holder._parameters]
        at_place = part.isdigit() and part in names and names.index(part) == int(part)
        if isinstance(holder, lists) and at_place and not getattr(holder, "under_compile", False):
            text += f"[{part}]"
        elif isinstance(holder, torch.nn.ModuleDict):
            text += f"[{part!r}]"
        elif part.isidentifier():
            text += f".{part}"
        else:
            text = f'getattr({text}, "{part}")'
        holder = getattr(holder, part)
    return text


def has_attribute(model: torch.nn.Module, path: str) -> bool:
    holder = model
    for part in path.split("."):
        if not hasattr(holder, part):
            return False
        holder = getattr(holder, part)
    return True


# ---------------------------------------------------------------------------------------------- the problem's own text


class _Renamed(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("ModelNew", node.ctx) if node.id == "Model" else node


LOADED = """
def _weights_loaded(self, _incompatible_keys):
    self._prepare_weights()
"""


PREPARED_AGAIN = """
def as_written(self, *args, **kwargs):
    made = self.as_it_stands(*args, **kwargs)
    self._prepare_weights()
    return made
"""


def _functions(text: str) -> list[ast.FunctionDef]:
    return [part for part in ast.parse(text).body if isinstance(part, ast.FunctionDef)]


def _prepares(model: ast.ClassDef, kept: list[str]) -> None:
    """Appends lines to the constructor, which are executed again where other weights are loaded."""
    if not kept:
        return
    found = [part for part in model.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    if not found:
        found = _functions("def __init__(self):\n    super().__init__()")
        model.body = [*found, *(part for part in model.body if not isinstance(part, ast.Pass))]
    again = "self.register_load_state_dict_post_hook(ModelNew._weights_loaded)"  # a lambda could not be pickled
    found[0].body += ast.parse(f"self._prepare_weights()\n{again}").body
    (prepare,) = _functions("def _prepare_weights(self):\n    pass")
    prepare.body = ast.parse("\n".join(kept)).body
    model.body += [prepare, *ast.parse(LOADED).body]


def constructors(text: str, kept: list[str], classes: set[str], changing: bool) -> tuple[str, str]:
    """What ModelNew needs of the problem's text, and ModelNew's class, in which Model's own forward is called `as_written`.

    The submodules are built by the problem's own classes, in its order, so that equal seeds give equal weights. `classes`: what else is needed.
    `changing`: what is prepared of weights is prepared again where Model's own forward has answered, for that may set them.
    """
    tree = ast.parse(text)
    model, others = _model_class(tree), [node for node in tree.body if not _binds_model(node)]
    model = _Renamed().visit(model)
    model.name = "ModelNew"
    _rename_forward(model)
    _prepares(model, kept)
    if kept and changing:
        (own,) = (part for part in model.body if getattr(part, "name", "") == "as_written")
        assert isinstance(own, ast.FunctionDef)
        own.name = "as_it_stands"
        model.body += ast.parse(PREPARED_AGAIN).body
    needed, kept_nodes = _names(model) | classes, set()
    while True:
        more = [n for n in others if n not in kept_nodes and _binds(n) & needed and not isinstance(n, ast.Expr)]
        if not more:
            break
        kept_nodes.update(more)
        needed = needed.union(*map(_names, more))
    before = [n for n in others if n in kept_nodes or isinstance(n, (ast.Import, ast.ImportFrom))]
    imports = [ast.unparse(n) for n in before if isinstance(n, (ast.Import, ast.ImportFrom))]
    kept_text = ["\n\n" + ast.unparse(n) for n in before if not isinstance(n, (ast.Import, ast.ImportFrom))]
    return "\n".join([*imports, *kept_text]), ast.unparse(model)


def _binds_model(node: ast.stmt) -> bool:
    return isinstance(node, (ast.ClassDef, ast.Assign)) and "Model" in _binds(node)


def _model_class(tree: ast.Module) -> ast.ClassDef:
    """The class Model, or one that inherits from what the problem gives that name."""
    found = [node for node in tree.body if _binds_model(node)]
    if not found:
        raise NoDraft("the problem gives the name Model to nothing at its top level")
    if isinstance(found[-1], ast.ClassDef):
        return found[-1]
    assert isinstance(found[-1], ast.Assign)
    bases = [found[-1].value]
    (alias,) = ast.parse("class Model: pass").body
    assert isinstance(alias, ast.ClassDef)
    alias.bases = bases
    return alias


def _rename_forward(model: ast.ClassDef) -> None:
    own = [part for part in model.body if isinstance(part, ast.FunctionDef) and part.name == "forward"]
    if own:
        own[-1].name = "as_written"
    else:
        model.body += ast.parse(
            "def as_written(self, *args, **kwargs):\n    return super().forward(*args, **kwargs)"
        ).body


def future_imports(before: str) -> tuple[list[str], str]:
    """The lines that must be a file's first, and the others."""
    lines = before.split("\n")
    future = [line for line in lines if line.startswith("from __future__ ")]
    return future, "\n".join(line for line in lines if line not in future)


def _names(node: ast.AST) -> set[str]:
    """Names of the module that a statement uses: not its own arguments and locals."""
    found: set[str] = set()
    tables = [symtable.symtable(ast.unparse(node), "problem.py", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        found |= {s.get_name() for s in table.get_symbols() if s.is_global() or (top and s.is_referenced())}
    return found


def _binds(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return {node.name}
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def shape_text(shape: tuple[Index, ...]) -> str:
    text = ", ".join(map(index_text, shape))
    return f"({text},)" if len(shape) == 1 else f"({text})"
