"""Sources beside what rewrites made of them: compiled as one library, run in a process of its own, compared value by value.

CUDA runs in the emulation, the threads of a block forwards and backwards, on a device of many multiprocessors and of one; C++
runs with one thread and with three. Tensors lie between guards, aligned to 16 bytes and one element off.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.backends import cpu
from kernels.spec import Size, Spec, Tensor, Workload
from tests.nodes.rewrites.emulate import emulation

ARRAYS = {
    "x": ("input", ("rows", "n"), "T"), "z": ("input", ("rows", "n"), "T"), "pair": ("input", ("rows", "2*n"), "T"),
    "table": ("input", ("rows", "n"), "T"), "w": ("input", ("n",), "T"), "s": ("input", ("rows",), "float32"),
    "mask": ("input", ("rows", "n"), "uint8"), "index": ("input", ("rows",), "int64"), "y": ("inout", ("rows", "n"), "T"),
    "v": ("inout", ("rows", "n"), "T"), "out": ("inout", ("rows",), "float32"), "sums": ("inout", ("n",), "float32"),
}  # fmt: skip
"""What a source may read and write, in the order of its entry's parameters; `rows` and `n` stand behind them."""
SHAPES = ((1, 1), (3, 36), (2, 129), (5, 64), (1, 1030), (2, 520))
EVEN_SHAPES = ((1, 4), (3, 36), (2, 128), (5, 64), (1, 1032), (2, 520))
HEADERS = (
    "array cfloat climits cmath cstdint cstring functional initializer_list limits numeric tuple type_traits vector"
)
CPU_FLAGS = [flag for flag in cpu.FLAGS if flag not in ("-O3", "-Wall")]
STEPS = {torch.float16: 2**-9, torch.bfloat16: 2**-6}


@dataclass(frozen=True)
class Text:
    """A source with one entry `fuzz_DTYPE` whose parameters are among ARRAYS."""

    language: str
    text: str
    timed: tuple[int, int] = (4096, 4096)
    flags: Collection[str] = ()
    """`aligned`: it loads vectors itself. `even`: not for rows of odd length. `exact`: no last digit may differ."""

    @property
    def spec(self) -> Spec:
        """Timed on one size, run on small ones."""
        match = re.search(r'extern "C" void fuzz_(\w+)\(([^)]*)\)', self.text)
        assert match is not None, "no function `fuzz_DTYPE` with C linkage"
        named = {parameter.split()[-1].lstrip("*") for parameter in match[2].split(",")}
        tensors = [
            Tensor(name=name, role=role, shape=shape, dtype=dtype, values=({"index": "index:rows", "mask": "range:0:2"}.get(name, "ordinary"),))
            for name, (role, shape, dtype) in ARRAYS.items() if name in named
        ]  # fmt: skip
        sizes = (self.timed, *(EVEN_SHAPES if {"even", "aligned"} & set(self.flags) else SHAPES))
        workloads = [
            Workload(axes={"rows": rows, "n": n}, dtype=match[1], timed=at == 0, devices=(self.language,))
            for at, (rows, n) in enumerate(sizes)
        ]
        return Spec(
            name="fuzz", summary="a source of the tests", axes=("rows", "n"), dtypes=(match[1],), workloads=tuple(workloads),
            arguments=(*tensors, Size(name="rows"), Size(name="n")),
        )  # fmt: skip


def differences(pairs: list[tuple[Text, str]]) -> list[str]:
    """For each source and what became of it "", or where their values differ."""
    found = [""] * len(pairs)
    with tempfile.TemporaryDirectory() as scratch:
        for language in ("cuda", "cpu"):
            mine = [n for n, (text, new) in enumerate(pairs) if text.language == language and text.text != new]
            if not mine:
                continue
            built = Path(scratch) / f"{language}.so"
            _compile(language, [one for n in mine for one in (pairs[n][0].text, pairs[n][1])], built)
            ended = emulation.apart(_run, str(built), [pairs[n][0] for n in mine])
            said = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('"')]
            said += [f"ended with {ended.returncode}: {ended.stdout}{ended.stderr}"][len(said) == len(mine) :]
            for n, words in zip(mine, said, strict=False):
                found[n] = words
    return found


def _compile(language: str, texts: list[str], built: Path) -> None:
    """Each in a namespace of its own."""
    path = built.with_suffix(".cpp")
    head = (
        '#include "cuda_emulation.h"\n'
        if language == "cuda"
        else "#include <immintrin.h>\n#include <omp.h>\n#include <algorithm>\n"
    )
    prepare = "emulate::backwards = backwards" if language == "cuda" else "omp_set_num_threads(backwards ? 3 : 1)"
    boxes = "".join(_boxed(language, number, text) for number, text in enumerate(texts))
    path.write_text(
        head
        + "".join(f"#include <{name}>\n" for name in HEADERS.split())
        + f'extern "C" void prepare(bool backwards) {{ {prepare}; }}\n{boxes}'
    )
    if language == "cuda":
        command = ["g++", *emulation.FLAGS, *emulation.compiled_before(), f"-I{emulation.HERE}"]
    else:
        command = ["g++", "-O1", "-w", "-ffp-contract=off", *CPU_FLAGS]
    done = subprocess.run([*command, str(path), "-o", str(built)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


def _boxed(language: str, number: int, text: str) -> str:
    entry = re.search(r"void (fuzz_\w+)\(([^)]*)\)", text)
    assert entry is not None
    passed = [p.rpartition(" ")[0] for p in entry[2].replace("*", "* ").split(",") if "*" in p]
    listed = ", ".join([*(f"({kind})tensors[{at}]" for at, kind in enumerate(passed)), "rows", "n"])
    text = emulation.host_source(text) if language == "cuda" else text
    undone = "".join(
        f"#undef {name}\n" for name in dict.fromkeys(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.M))
    )
    text = re.sub(r"^[ \t]*#[ \t]*include[^\n]*", "", text, flags=re.M)  # all of them stand in front
    # What a text declares of the C library stays what it is.
    text = re.sub(r'extern "C"\s*\{(?!\s*#pragma omp declare simd)', "inline namespace linked {", text)
    text = re.sub(r'extern "C"\s+(?!\{)', "", text)
    stream = ", nullptr" if language == "cuda" else ""
    run = f'extern "C" void run_{number}(void** tensors, int64_t rows, int64_t n) {{ {entry[1]}({listed}{stream}); }}\n'
    return f'namespace text_{number} {{\n#line 1 "text_{number}"\n{text}\n#line 1 "box_{number}"\n{undone}{run}}}\n'


def _run(built: str, texts: list[Text]) -> None:
    library = ctypes.CDLL(built)
    for number, text in enumerate(texts):
        print(
            json.dumps(_differ(text, *(list(_called(library, f"run_{2 * number + n}", text)) for n in (0, 1)))),
            flush=True,
        )


Left = tuple[str, str, dict[str, torch.Tensor], str]
"""Of one call: its size, its way, the tensors afterwards, and what was written that must not be."""


def _called(library: ctypes.CDLL, name: str, text: Text) -> Iterator[Left]:
    spec, off = text.spec, 0 if "aligned" in text.flags else 1
    ways = (
        ((0, False, 132), (0, True, 1), (off, True, 132))
        if text.language == "cuda"
        else ((0, False, 1), (off, True, 1))
    )
    for workload in spec.workloads[1:]:
        for offset, backwards, units in ways:
            library.prepare(backwards)
            os.environ["EMULATE_MULTIPROCESSORS"] = str(units)
            placed = {}
            for number, tensor in enumerate(spec.tensors):
                drawn = emulation.values(spec, tensor, workload, number)
                placed[tensor.name] = emulation.placed(drawn.shape, drawn.dtype, offset)
                placed[tensor.name][1].copy_(drawn)
            pointers = (ctypes.c_void_p * len(placed))(*(view.data_ptr() for _, view in placed.values()))
            getattr(library, name)(pointers, *(ctypes.c_int64(workload.axes[axis]) for axis in ("rows", "n")))
            beside = "".join(
                f"{key}: written outside its bounds" for key, one in placed.items() if emulation.outside(*one, offset)
            )
            way = f"{workload.label}, {offset} off, {'backwards' if backwards else 'forwards'}, {units} multiprocessors"
            yield workload.label, way, {key: view for key, (_, view) in placed.items()}, beside


def _differ(text: Text, before: list[Left], after: list[Left]) -> str:
    first: dict[str, dict[str, torch.Tensor]] = {}
    for (size, way, old, outside), (*_, new, beyond) in zip(before, after, strict=True):
        if outside or beyond:
            return f"{way}: {outside or beyond}"
        usual = first.setdefault(size, old)
        for name, want in old.items():
            if unsteady := _difference(want, usual[name], True):
                return f"{way}: the source itself differs in {name}: {unsteady}"
            if wrong := _difference(new[name], want, "exact" in text.flags or ARRAYS[name][0] == "input"):
                return f"{way}: {name}: {wrong}"
    return ""


def _difference(got: torch.Tensor, want: torch.Tensor, exact: bool) -> str:
    """Sums in another order differ in their last digits, by whatever is large among what was summed."""
    a, b = got.double(), want.double()
    near = (a == b) | (a.isnan() & b.isnan())
    if not exact and got.dtype.is_floating_point:
        scale = b.abs().nan_to_num(posinf=0, neginf=0).max() if b.numel() else b.sum()
        near |= (a - b).abs() <= STEPS.get(got.dtype, 1e-4) * (b.abs() + scale) + 1e-6
    return emulation.wrong_places(near, got, want)
