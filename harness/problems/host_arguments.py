"""What a forward takes, as its host sees it: one argument after another, each a tensor, a number or an object."""

from __future__ import annotations

import ast

from harness.problems.host_values import NoHost


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


def list_arguments(forward: ast.FunctionDef, star: str) -> None:
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


def leave_out_names(forward: ast.FunctionDef) -> None:
    """Arguments that only a name can give are at their defaults, which are constants."""
    pairs = zip(forward.args.kwonlyargs, forward.args.kw_defaults, strict=True)
    defaults = {argument.arg: ast.unparse(value) for argument, value in pairs if isinstance(value, ast.Constant)}
    if len(defaults) < len(forward.args.kwonlyargs):
        raise NoHost("forward takes what a call must name, or what no constant stands for")
    if forward.args.kwarg is not None:
        defaults[forward.args.kwarg.arg] = "{}"
    if defaults:
        forward.body = [_LeftOut(defaults).visit(statement) for statement in forward.body]


def kind_of_argument(forward: ast.FunctionDef, name: str) -> str:
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
        if isinstance(holder, ast.If) and is_fallback(holder, forward.args.args[0].arg):
            continue
        if isinstance(parent, ast.Compare):
            compared = True
        else:
            tensor = True
    return "t" if tensor and not compared else "o"


def is_fallback(node: ast.If, module: str) -> bool:
    """Whether it is `if ...: return self.method(...)`."""
    (done,) = node.body if len(node.body) == 1 else (None,)
    if node.orelse or not isinstance(done, ast.Return) or not isinstance(done.value, ast.Call):
        return False
    function = done.value.func
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == module
