"""A candidate's forward as one native call, beside the same forward in Python."""

from __future__ import annotations

import ast
import copy
import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from harness.backends.model_new import native_source
from harness.farside.forms import NativeFunctions
from harness.problems.host import NoHost, translate

FLAGS = ["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Werror"]
CANDIDATE = '''
import ctypes
import torch
from torch import nn

CPP_SOURCE = r"""
#include <cstdint>
extern "C" void scale_rows(const float* x, const float* by, float* out, int64_t rows, int64_t width, double plus) {
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < width; ++i) out[row * width + i] = x[row * width + i] * by[i] + static_cast<float>(plus);
}
extern "C" void count(float* seen, int64_t more) { seen[0] += more; }
"""
native = load_native(globals())


def halved(x, parts):
    return x.chunk(parts, dim=1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(36, 6))
        self.by = nn.ParameterList([nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(6))])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.free = nn.Parameter(torch.rand(6, 6))
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("batches", torch.tensor(0))

    @native.host
    def forward(self, x, y):
        device = x.device
        n = x.shape[0]
        if tuple(x.shape) != (n, 3, 5, 5) or x.dtype != torch.float32:
            raise ValueError("x has shape [n, 3, 5, 5]")
        x = x.contiguous()
        conv = torch.ops.aten.conv2d.default(x, self.block.layers[0].weight, self.block.layers[0].bias, [1, 1], [0, 0], [1, 1], 1).contiguous()
        linear = torch.ops.aten.linear.default(conv.view(n, 36), self.block.layers[1].weight, self.block.layers[1].bias).contiguous()
        del conv
        scaled = torch.empty((n, 6), dtype=torch.float32, device=device)
        native.scale_rows(linear, self.block.by[1], scaled, n, 6, ctypes.c_double(y))
        native.count(self.seen, 2 * n // 2)
        values, _ = torch.ops.aten.sort.default(scaled, -1)
        values = values.contiguous()
        product = torch.ops.aten.mm.default(values, self.free.as_strided((6, 6), (1, 6), self.free.storage_offset() + 0)).contiguous()
        left, right = halved(product, 2)
        more = torch.ops.aten.cat.default([left, right], dim=1).contiguous()
        same = torch.ops.aten.cat.default([more, right.contiguous(), left], 1).contiguous()
        torch._foreach_add_([self.batches], 1)
        return same, [left, {"right": right.clone()}], None
'''


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> types.SimpleNamespace:
    """ModelNew as it is built, and the one whose forward is Python's."""
    folder = tmp_path_factory.mktemp("host")
    return types.SimpleNamespace(
        native=model(CANDIDATE, folder), python=model(CANDIDATE.replace("    @native.host\n", ""), folder)
    )


def model(text: str, folder: Path):
    library = folder / "native.so"
    if not library.exists():
        source = folder / "native.cpp"
        source.write_text(native_source(text, "cpu") + translate(text, "cpu"))
        done = subprocess.run(["g++", *FLAGS, "-o", library, source], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
    module = types.ModuleType("candidate")
    module.load_native = lambda namespace: NativeFunctions(library, "cpu")  # type: ignore[attr-defined]
    sys.modules["candidate"] = module
    exec(compile(text, "candidate.py", "exec"), module.__dict__)
    return module.ModelNew


def is_bound(model_new) -> bool:
    """Whether the last call went through the library's host."""
    cells = [cell.cell_contents for cell in model_new.forward.__closure__]
    return any(isinstance(kept, list) and isinstance(kept[0], types.BuiltinFunctionType) for kept in cells)


def flat(tree) -> list[torch.Tensor]:
    same, (left, kept), nothing = tree
    assert nothing is None
    return [same, left, kept["right"]]


def agree(new, old, x, y=0.25) -> None:
    mine, right = flat(new(x, y)), flat(old(x, y))
    assert all(torch.equal(a, b) and a.shape == b.shape for a, b in zip(mine, right, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(new.buffers(), old.buffers(), strict=True))


def pair(made):
    torch.manual_seed(0)
    new = made.native()
    torch.manual_seed(0)
    return new, made.python()


@torch.no_grad()
def test_it_is_what_python_says(made):
    new, old = pair(made)
    for count in (4, 1, 7):
        agree(new, old, torch.randn(count, 3, 5, 5))
    assert is_bound(made.native)
    assert new.batches.item() == 3 and new.seen.item() == 12


@torch.no_grad()
def test_inputs_that_are_not_contiguous(made):
    new, old = pair(made)
    agree(new, old, torch.randn(4, 5, 5, 3).permute(0, 3, 1, 2))
    agree(new, old, torch.randn(4, 3, 5, 10)[..., ::2])


@torch.no_grad()
def test_weights_that_are_replaced(made):
    new, old = pair(made)
    x = torch.randn(2, 3, 5, 5)
    agree(new, old, x)
    state = {name: value + 1 for name, value in new.state_dict().items() if value.is_floating_point()}
    for assign in (False, True):
        for each in (new, old):
            each.load_state_dict(copy.deepcopy(state), strict=False, assign=assign)
        agree(new, old, x)
    layer = torch.nn.Linear(36, 6)
    for each in (new, old):
        each.block.layers[1] = layer
        each.block.layers[0].weight.data = torch.ones(4, 3, 3, 3)
        each.free = torch.nn.Parameter(torch.eye(6))
    agree(new, old, x)
    agree(copy.deepcopy(new), copy.deepcopy(old), x)
    agree(new.double().float(), old, x)
    assert is_bound(made.native)


def test_gradients_are_not_followed_and_stay_enabled(made):
    new, _ = pair(made)
    assert not new(torch.randn(2, 3, 5, 5), 1)[0].requires_grad and torch.is_grad_enabled()


@torch.no_grad()
def test_faults_are_pythons_exceptions(made):
    new, _ = pair(made)
    with pytest.raises(ValueError, match=r"x has shape"):
        new(torch.randn(2, 3, 5, 6), 1.0)
    with pytest.raises(ValueError, match="not contiguous"):
        new.seen = torch.zeros(2, 2).t()
        new(torch.randn(2, 3, 5, 5), 1.0)
    new, _ = pair(made)
    new.free = torch.nn.Parameter(torch.eye(6, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="dtype"):
        new(torch.randn(2, 3, 5, 5), 1.0)


@torch.no_grad()
def test_what_is_no_plain_tensor_is_pythons(made):
    class Marked(torch.Tensor):
        pass

    new, old = pair(made)
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(new(x=x, y=1.0)[0], old(x, 1.0)[0])
    with pytest.raises(TypeError, match="Marked"):
        new(x.as_subclass(Marked), 1.0)
    with pytest.raises(TypeError, match="positional"):
        new(x)


@torch.no_grad()
def test_nothing_is_kept(made):
    new, _ = pair(made)
    x = torch.randn(2, 3, 5, 5)
    counts = []
    for _ in range(3):
        for _ in range(50):
            new(x, 0.5)
            with pytest.raises(ValueError):
                new(x[:, :2], 0.5)
        counts.append([sys.getrefcount(kept) for kept in (x, new.free, new.block.layers[0].weight, None)])
    assert all(abs(a - b) < 20 for a, b in zip(counts[0], counts[2], strict=True))


def test_a_model_can_be_pickled(made):
    new, _ = pair(made)
    sys.modules["candidate"].__dict__.update(made.native.forward.__wrapped__.__globals__)
    with torch.no_grad():
        assert torch.equal(pickle.loads(pickle.dumps(new)).free, new.free)


STARRED = CANDIDATE.replace(
    "    def forward(self, x, y):\n",
    """    def forward(self, *given):
        if (
            not isinstance(given, tuple)
            or len(given) != 2
        ):
            return self.as_written(*given)
        x = given[0]
        y = given[1]
""",
).replace(
    "        torch._foreach_add_", "        self.block.layers[1].left = scaled.clone()\n        torch._foreach_add_"
)
STARRED += """
    def as_written(self, *given):
        return len(given)
"""


@torch.no_grad()
def test_arguments_without_names_and_attributes_of_parts(tmp_path):
    made = types.SimpleNamespace(
        native=model(STARRED, tmp_path), python=model(STARRED.replace("    @native.host\n", ""), tmp_path)
    )
    new, old = pair(made)
    for count in (4, 1):
        agree(new, old, torch.randn(count, 3, 5, 5))
        assert torch.equal(new.block.layers[1].left, old.block.layers[1].left)
    assert is_bound(made.native)
    assert (new(), new(1), new(1, 2, 3)) == (0, 1, 3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("or len(given) != 2", ""),
        ("given[1]", "given[2]"),
        ("given[1]", "given[-1]"),
        ("y = given[1]", "y = given[1]\n        z = given[1].contiguous()"),
        ("device = x.device", "device = x.device\n        self.given = given"),
        ("return same,", "return self.block.layers[1].left,"),
    ],
)
def test_arguments_without_names_that_stay_pythons(old, new):
    translate(STARRED, "cpu")
    with pytest.raises(NoHost):
        translate(STARRED.replace(old, new), "cpu")


NAMED = CANDIDATE.replace(
    "    def forward(self, x, y):\n",
    """    def forward(self, x, y=0.5, mask=None, *, flag=False, scale=2.0, **more):
        if (
            mask is not None
            or flag is not False
            or isinstance(scale, torch.Tensor) or scale != 2.0
            or isinstance(more, torch.Tensor) or more != {}
        ):
            return self.as_written(x, y, mask, flag=flag, scale=scale, **more)
""",
)
NAMED += """
    def as_written(self, x, y, mask, **named):
        return y, mask, named
"""


@torch.no_grad()
def test_arguments_that_are_left_out(tmp_path):
    made = types.SimpleNamespace(
        native=model(NAMED, tmp_path), python=model(NAMED.replace("    @native.host\n", ""), tmp_path)
    )
    new, old = pair(made)
    x = torch.randn(4, 3, 5, 5)
    agree(new, old, x)
    assert all(torch.equal(a, b) for a, b in zip(flat(new(x)), flat(old(x)), strict=True))
    made.native.forward.__wrapped__.__globals__["native"] = None  # which Python's forward would call
    assert torch.equal(new(x)[0], new(x, 0.5)[0])
    assert new(x, 1.5, 1) == (1.5, 1, {"flag": False, "scale": 2.0})
    assert new(x, scale=3.0, other=4) == (0.5, None, {"flag": False, "scale": 3.0, "other": 4})
    with pytest.raises(TypeError, match="missing"):
        new()
    for old_text, new_text in (("flag=False,", "flag,"), ("flag=False,", "flag=int,"), ("flag is not False", "flag")):
        with pytest.raises(NoHost):
            translate(NAMED.replace(old_text, new_text, 1), "cpu")


CHANGES = {
    "for i in range(3): pass": "For",
    "n = n if n else 1": "n if n else 1",
    "self.seen += 1": "AugAssign",
    "scaled = scaled + 1": "scaled + 1",
    "other = scaled = scaled": "Assign",
    "other = self": "gives the module itself away",
    "first, *rest = halved(scaled, 2)": "several names",
    "print(n)": "print",
}


@pytest.mark.parametrize("line", CHANGES)
def test_what_cannot_be_said_is_named(line):
    text = CANDIDATE.replace("        del conv\n", f"        del conv\n        {line}\n")
    ast.parse(text)
    with pytest.raises(NoHost):
        translate(text, "cpu")


def test_a_torch_without_the_shim_leaves_python(made, monkeypatch):
    new, old = pair(made)
    native = made.native.forward.__wrapped__.__globals__["native"]
    other = native.host(made.native.forward.__wrapped__)
    monkeypatch.setattr(torch.nn, "Parameter", lambda data, requires_grad: data)  # a layout that the host does not know
    with torch.no_grad():
        x = torch.randn(2, 3, 5, 5)
        assert torch.equal(other(new, x, 0.5)[0], old(x, 0.5)[0])
    assert not is_bound(types.SimpleNamespace(forward=other))


READS = (
    CANDIDATE.partition("class Block")[0].replace("def halved", "def unused")
    + """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.by, self.asked = nn.Parameter(torch.rand(6)), []

    def as_written(self, x):
        self.asked.append(1)
        return x * 3

    @native.host
    def forward(self, x):
        device = x.device
        n = x.shape[0]
        made = torch.empty((n, 6), dtype=torch.float32, device=device)
        native.scale_rows(x, self.by, made, n, 6, ctypes.c_double(0.5))
        above = torch.ops.aten.gt.Scalar(made, 0).contiguous()
        most = torch.ops.aten.all.default(above).contiguous()
        u0: int = most.item()
        if not (u0 == 1):
            return self.as_written(x)
        places = torch.ops.aten.nonzero.default(above).contiguous()
        u1: int = places.shape[0]
        if places.shape != (u1, 2):
            return self.as_written(x)
        out = torch.empty((u1,), dtype=torch.float32, device=device)
        native.scale_rows(made, self.by, out, u1 // 6, 6, ctypes.c_double(1))
        return out
"""
)


@torch.no_grad()
def test_a_number_is_read_between_kernels_and_python_does_it_again_where_it_is_another(tmp_path):
    made = types.SimpleNamespace(
        native=model(READS, tmp_path), python=model(READS.replace("    @native.host\n", ""), tmp_path)
    )
    new, old = pair(made)
    for x in (torch.rand(4, 6), torch.rand(2, 6), torch.rand(3, 6) - 5):
        assert torch.equal(new(x), old(x))
    assert is_bound(made.native) and new.asked == old.asked == [1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("above = torch.ops.aten.gt.Scalar(made, 0)", "above = torch.ops.aten.rand_like.default(made)"),
        ("native.scale_rows(x, self.by, made,", "native.scale_rows(x, self.by, self.by,"),
        ("        u0: int", "        self.by.copy_(x[0])\n        u0: int"),
        ("        u0: int", "        self.by.asked = most\n        u0: int"),
        ("most = torch.ops.aten.all.default(above)", "most = self.part(above)"),
        ("u0: int = most.item()", "u0: int = most.min()"),
    ],
)
def test_what_python_must_not_do_again_leaves_python(old, new):
    translate(READS, "cpu")
    assert old in READS
    with pytest.raises(NoHost):
        translate(READS.replace(old, new), "cpu")
