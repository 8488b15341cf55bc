"""Drafts without the harness: built by g++ or nvcc, called through ctypes, beside the module they were drafted of."""

from __future__ import annotations

import ast
import ctypes
import functools
import hashlib
import re
import subprocess
import tempfile
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import torch
from torch.utils import _pytree as pytree

from compiler import draft
from compiler.draft.exported import NoDraft
from compiler.draft.prelude import CPP_INCLUDES
from harness.farside.forms import native_forward
from harness.problems.host import HEADER as HOST_HEADER
from harness.problems.host import host_source
from tests.machine import LINKER

HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
CONSTANTS = {"cpu": "CPP_SOURCE", "cuda": "CUDA_SOURCE"}


def problem(forward: str, inputs: str, constructor: str = "", init: str = "[]") -> str:
    """A problem's text: a body of `forward(self, x, y, z)`'s arguments as far as `inputs` has them, and one of `__init__`."""
    count = len(ast.parse(inputs, mode="eval").body.elts)
    names = ", ".join(["x", "y", "z"][:count])
    body = "".join(f"        {line}\n" for line in (constructor or "pass").splitlines())
    lines = "".join(f"        {line}\n" for line in forward.splitlines())
    return (
        f"{HEADER}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n{body}\n"
        f"    def forward(self, {names}):\n{lines}\n\ndef get_inputs():\n    return {inputs}\n\n\n"
        f"def get_init_inputs():\n    return {init}\n"
    )


def together(texts: Iterable[str]) -> str:
    """One problem of several that `problem` made: what most of a small one's draft and build take does not grow with it."""
    classes, names, calls, inputs = [], [], [], []
    for number, text in enumerate(texts):
        written, _, behind = text.removeprefix(HEADER).partition("\n\ndef get_inputs():\n    return ")
        mine = [f"{name}{number}" for name in re.findall(r"def forward\(self, (.*)\)", written)[0].split(", ")]
        classes.append(written.replace("class Model(", f"class Model{number}("))
        names += mine
        calls.append(f"self.part{number}({', '.join(mine)})")
        inputs.append(f"*{behind.partition(chr(10))[0]}")
    parts = "".join(f"        self.part{number} = Model{number}()\n" for number in range(len(classes)))
    return (
        f"{HEADER}{''.join(classes)}\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n{parts}\n"
        f"    def forward(self, {', '.join(names)}):\n        return {', '.join(calls)}\n\n\n"
        f"def get_inputs():\n    return [{', '.join(inputs)}]\n\n\ndef get_init_inputs():\n    return []\n"
    )


TOGETHER = 8


def groups(problems: Mapping[str, str], alone: Collection[str]) -> list[tuple[str, ...]]:
    """Names of problems that a test drafts together, and of those that it drafts `alone`, for what decides there is the whole."""
    many = [name for name in problems if name not in alone]
    return [tuple(many[at : at + TOGETHER]) for at in range(0, len(many), TOGETHER)] + [(name,) for name in alone]


def check_group(problems: Mapping[str, str], names: Sequence[str], check: Callable[[str], None]) -> None:
    """`check` of the problems together; where they fail, of each alone, so that it is the one at fault that is said."""
    try:
        check(together([problems[name] for name in names]) if len(names) > 1 else problems[names[0]])
    except (AssertionError, NoDraft):
        for name in names if len(names) > 1 else ():
            try:
                check(problems[name])
            except (AssertionError, NoDraft) as error:
                raise AssertionError(f"{name}: {error}") from error
        raise


def module(text: str, **given) -> types.ModuleType:
    made = types.ModuleType("made")
    made.__dict__.update(given)
    exec(compile(text, "made.py", "exec"), made.__dict__)
    return made


def native_source(text: str, device: str) -> str:
    (found,) = (
        node.value for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == CONSTANTS[device]
    )  # fmt: skip
    return ast.literal_eval(found)


def spilled(cuda: str, architecture: str, folder: Path) -> list[int]:
    """Bytes that each kernel of a draft's CUDA spills on `sm_90a` and the like, as ptxas says."""
    source, made = folder / "draft.cu", folder / "draft.cubin"
    source.write_text(cuda)
    command = ["nvcc", "-std=c++17", "-O3", "-cubin", f"-arch={architecture}", "-Xptxas", "-v", "-o", made, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    return [int(count) for count in re.findall(r"(\d+) bytes spill stores", done.stderr)]


def agree_on_what_is_not_finite(eager, new, steps: int = 512, columns: int = 64) -> None:
    """Two modules that multiply 64 rows of `steps` by as many of `columns`: infinities, a NaN, and a number that rounds up to infinity."""
    x, y = torch.rand(64, steps) + 0.5, torch.rand(steps, columns) + 0.5
    x[3, 7], x[20, 50], x[30, 5] = float("inf"), float("nan"), torch.finfo(torch.float32).max
    y[9, 11], y[5] = -float("inf"), 0.25
    ours, theirs = new(x, y), eager(x, y)
    assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())
    assert theirs[30].isfinite().any() and theirs[3].isinf().any()
    torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-5, atol=0)


GCC = ["g++", "-std=c++17", "-O0", "-fopenmp", "-fPIC", "-Wall", "-Wno-unknown-pragmas", "-Werror", *LINKER]


HOST, IN_FRONT = HOST_HEADER.read_text(), "#ifndef __CUDA_ARCH__\n"


@functools.cache
def read_before(*command: str, host: bool = False) -> tuple[list[str], tempfile.TemporaryDirectory]:
    """Options with which that g++ has read the headers of a draft already, and of its host: two thirds of a build; and the folder they are in."""
    folder = tempfile.TemporaryDirectory(prefix="draft-headers-")
    header = Path(folder.name) / "headers.h"
    header.write_text(f"{CPP_INCLUDES}{HOST}\n#endif\n" if host else CPP_INCLUDES)
    subprocess.run([*command, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)
    return ["-include", str(header)], folder


def library(source: str, device: str, folder: Path) -> ctypes.CDLL:
    name = hashlib.sha256(source.encode()).hexdigest()[:16]
    path = folder / f"{name}{'.cu' if device == 'cuda' else '.cpp'}"
    host = device == "cpu" and HOST in source
    path.write_text(source.replace(HOST, IN_FRONT) if host else source)
    shared = path.with_suffix(".so")
    if device == "cuda":
        command = ["nvcc", "-std=c++17", "-O2", "-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", "-arch=native"]
    else:
        command = [*GCC, "-shared", *read_before(*GCC, host=host)[0]]
    done = subprocess.run([*command, "-o", str(shared), str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000] + source
    return ctypes.CDLL(str(shared))


class Native:
    """As harness/backends/model_new.py says that the harness's `load_native` answers."""

    def __init__(self, loaded: ctypes.CDLL, device: str) -> None:
        self._loaded, self._device = loaded, device

    def __getattr__(self, name: str):
        function = getattr(self._loaded, name)
        function.restype = None

        def call(*arguments):
            given = [_argument(argument) for argument in arguments]
            if self._device == "cuda":
                given.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
            function(*given)

        return call

    def host(self, forward):
        return (
            native_forward(ctypes.PyDLL(self._loaded._name), forward) if hasattr(self._loaded, "host_bind") else forward
        )


class Emulated(Native):
    """A draft's kernels in the emulation: the last argument of each is the stream."""

    def __getattr__(self, name: str):
        call = super().__getattr__(name)
        return lambda *arguments: call(*arguments, ctypes.c_void_p(0))


def emulated(source: str, loaded: ctypes.CDLL) -> types.ModuleType:
    """A draft for a GPU whose kernels run in the emulation. What it was not drafted for is a failure."""
    source = source.replace('device.type != "cuda"', 'device.type != "cpu"')
    made = module(source, load_native=lambda _: Emulated(loaded, "emulated"))
    made.ModelNew.as_written = _falls_back
    return made


def _falls_back(self, *arguments, **named):
    raise AssertionError("the draft calls the module's own forward")


def _argument(value):
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous()
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, (bool, int)):
        return ctypes.c_int64(value)
    return ctypes.c_float(value) if isinstance(value, float) else value


class Pair:
    """A problem and the draft of it, built."""

    def __init__(self, text: str, folder: Path, device: str = "cpu") -> None:
        self.device = device
        self.answer = draft.answer(text, device, numerics="fp32")  # tests turn TF32 off in eager
        self.source = self.answer["source"]
        self.reference = module(text)
        loaded = library(native_source(self.source, device) + host_source(self.source, device), device, folder)
        self.candidate = module(self.source, load_native=lambda _: Native(loaded, device))

    def inputs(self, seed: int, leading: int | None = None, scale: float = 1.0, shift: float = 0.0) -> list:
        """A draw of get_inputs; with another leading size where one is given, each tensor's."""
        torch.manual_seed(1000 + seed)

        def drawn(value):
            if not isinstance(value, torch.Tensor):
                return value
            if leading is not None and value.dim():
                value = value.repeat(-(-leading // value.shape[0]), *[1] * (value.dim() - 1))[:leading].contiguous()
            value = value * scale + shift if value.is_floating_point() else value
            return value.to(self.device)

        return pytree.tree_map(drawn, self.reference.get_inputs())

    def check(self, seed: int, inputs: list, as_written: bool | None = False) -> None:
        """Draft and eager from equal seeds agree within a small multiple of what eager itself errs by, and so do their buffers.
        `as_written`: whether Model's own forward shall have answered; None where either may."""
        models = []
        for made in (self.reference.Model, self.reference.Model, self.candidate.ModelNew):
            torch.manual_seed(seed)
            models.append(made(*self.reference.get_init_inputs()).to(self.device))
        eager, wide, new = models
        of_eager, of_wide = (pytree.tree_map(change, inputs) for change in (_copied, _wide))
        # What a module has compiled runs as it is written: inductor's build of it is nobody's topic.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            torch.manual_seed(7)
            with patch.object(type(new), "as_written", autospec=True, side_effect=type(new).as_written) as asked:
                ours = new(*inputs)
            assert as_written is None or asked.called == as_written, (
                "who answered: the kernels or the module's own forward?"
            )
            torch.manual_seed(7)
            theirs = eager(*of_eager)
            torch.manual_seed(7)
            exact = theirs if "ropout" in self.source else wide.double()(*of_wide)
        assert type(ours).__name__ == type(theirs).__name__
        for mine, other, right in zip(*map(_leaves, (ours, theirs, exact)), strict=True):
            if not isinstance(other, torch.Tensor):
                assert mine == other
                continue
            assert mine.shape == other.shape and mine.dtype == other.dtype
            _close(mine, other, right)
        for given, changed in zip(*map(_leaves, (inputs, of_eager)), strict=True):
            if isinstance(given, torch.Tensor):
                torch.testing.assert_close(
                    given, changed, equal_nan=True, msg="an input is not what eager leaves of it"
                )
        mine = dict(new.named_buffers())
        for name, value in eager.named_buffers():
            torch.testing.assert_close(mine[name], value, rtol=1e-3, atol=1e-4, check_dtype=True)


def _close(mine: torch.Tensor, other: torch.Tensor, right: torch.Tensor) -> None:
    if mine.is_complex():
        mine, other, right = map(torch.view_as_real, (mine, other, right))
    if not mine.is_floating_point():
        assert torch.equal(mine, other)
        return
    assert torch.equal(mine.isnan(), other.isnan())
    assert torch.equal(mine.isinf(), other.isinf())
    finite = mine.isfinite()
    size = right[finite].abs().max().item() if finite.any() else 0.0
    error = (other.double() - right.double())[finite].abs().max().item() if finite.any() else 0.0
    torch.testing.assert_close(
        mine[finite].double(), right[finite].double(), rtol=2e-5, atol=4 * error + 1e-6 * size + 1e-7
    )


def _copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def _wide(value):
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else _copied(value)


_leaves = pytree.tree_leaves
