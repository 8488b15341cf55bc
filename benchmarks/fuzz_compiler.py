"""Random references through the compiler: evaluated, built as C++ and run, some as CUDA in the emulation.

    python -m benchmarks.fuzz_compiler [--count N] [--first SEED] [--emulated SHARE]

Every reference is drawn anew: a tree of elementwise operations under a reduction, a softmax, places of extremes, sums of
columns, a concatenation, a sort, a scan, counts or scatters, in place or not, of float32 or 16 bits. It is compared with itself in float64 at sizes that packs
divide and at sizes that they do not, aligned and one element off. Ends with 1 where one is wrong, and prints its seed.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from compiler.compile import Meaning
from compiler.defaults import ScheduleDefaults, cpu_schedule, schedule
from compiler.evaluate import check
from compiler.frontend import NoProgram
from compiler.schedule import Schedule
from harness.backends import cpu
from kernels import catalog
from tests.nodes.rewrites.emulate.emulation import emulated, run

SPEC = """\
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="drawn", summary="drawn", axes=("rows", "cols"), dtypes=({dtype!r},),
    arguments=(
        Tensor(name="x", role={role!r}, shape=("rows", "cols")),
        Tensor(name="y", role="input", shape=("rows", "cols")),
        Tensor(name="w", role="input", shape=("cols",)),
        Tensor(name="places", role="input", shape=("rows",), dtype="int64", values=("index:rows",)),
        {output}
        Size(name="rows"), Size(name="cols"),
    ),
    workloads=({workloads}),
)
"""
BINARY = ("({a} + {b})", "({a} - {b})", "({a} * {b})", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})", "torch.where({a} > 0, {a}, {b})")  # fmt: skip
UNARY = ("torch.tanh({a})", "torch.sigmoid({a})", "({a}).abs()", "torch.exp(-({a}).abs())", "({a}).clamp(-1, 1)", "torch.relu({a})", "({a}) / (1 + ({a}).square())")  # fmt: skip
LEAVES = ("x", "y", "w", "y[places]", "(0.5 * w)")
FORMS = {
    "elements": ("{e}", '("rows", "cols")', ""),
    "centred": ("{e} - ({e}).mean(-1, keepdim=True)", '("rows", "cols")', ""),
    "softmax": ("torch.softmax({e}, -1) * {f}", '("rows", "cols")', ""),
    "normed": ("({e}) * torch.rsqrt(({e}).square().mean(-1, keepdim=True) + 0.1)", '("rows", "cols")', ""),
    "scaled": ("({e}) / (1 + ({f}).abs().amax(-1, keepdim=True))", '("rows", "cols")', ""),
    "sums": ("({e}).sum(-1) + ({f}).amin(-1)", '("rows",)', ""),
    "columns": ("({e}).sum(0) / 64 + ({f}).amax(0)", '("cols",)', ""),
    "halves": ("torch.cat((({e})[:, x.shape[1] // 2 :], ({f})[:, : x.shape[1] // 2]), -1)", '("rows", "cols")', ""),
    "across": ("({e}).T * {f}.T", '("cols", "rows")', ""),
    "across, centred": ("(lambda t: t - t.mean(-1, keepdim=True))(({e}).T) + {f}.T", '("cols", "rows")', ""),
    "place": ("(x * 1.5).argmax(-1)", '("rows",)', "int64"),
    "sorted": ("({e}).sort(-1, descending=True).values * {f}", '("rows", "cols")', ""),
    "ranks": ("(x * 1.5).argsort(dim=-1, stable=True)", '("rows", "cols")', "int64"),
    "running": ("({e}).cumsum(-1) / 8 + ({f}).cummax(-1).values", '("rows", "cols")', ""),
    "down": ("({e}).cumsum(0) / 8 + ({f}).cumprod(0)", '("rows", "cols")', ""),
    "counted": (
        "torch.zeros_like(x).scatter_add(1, (places[:, None] + torch.arange(x.shape[1])) // 2 % x.shape[1], {e}) + {f}",
        '("rows", "cols")',
        "",
    ),
    "put": ("torch.softmax({e}, -1).scatter(1, (x * 1.5).argsort(dim=-1, stable=True), {f})", '("rows", "cols")', ""),
    "added": ("torch.zeros_like(x).index_add(0, places, {e})", '("rows", "cols")', ""),
    "bins": ("torch.bincount(places, minlength=x.shape[0])", '("rows",)', "int64"),
    "found": (
        "torch.searchsorted(w.sort().values, x, right=True) + torch.bucketize(x, w.sort().values)",
        '("rows", "cols")',
        "int64",
    ),
    "many": ("x.topk(9, -1).values.cumsum(-1)", '("rows", "9")', ""),
    "few": (
        "(({e}).topk(4, -1).values * torch.arange(4)).sum(-1) + ({f}).topk(3, -1, largest=False).values.sum(-1)",
        '("rows",)',
        "",
    ),
    "steps": (
        "sum(torch.nn.functional.pad({e}, (2, 1))[:, k : k + x.shape[1]] * (k + 1) for k in range(4)) / 8 + y",
        '("rows", "cols")',
        "",
    ),
    "picked": (
        "torch.cat((y[places][:, : x.shape[1] // 4] / 2, y[places.flip(0)][:, x.shape[1] // 4 :]), -1) * {f}",
        '("rows", "cols")',
        "",
    ),
    "largest": ("torch.softmax(x, -1).topk(2, -1).values", '("rows", "2")', ""),
}
"""(text of the result, its shape, its dtype)"""


def expression(draw: random.Random, depth: int) -> str:
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(LEAVES)
    if draw.random() < 0.4:
        return draw.choice(UNARY).format(a=expression(draw, depth - 1))
    return draw.choice(BINARY).format(a=expression(draw, depth - 1), b=expression(draw, depth - 1))


def drawn(seed: int) -> tuple[str, str, str]:
    """(spec.py, reference.py, form)."""
    draw = random.Random(seed)
    form = draw.choice(list(FORMS))
    text, shape, kind = FORMS[form]
    body = text.format(e="(x + " + expression(draw, 3) + ")", f="(y * " + expression(draw, 2) + ")")
    dtype = draw.choice(("float32", "float16", "bfloat16"))
    in_place = shape == '("rows", "cols")' and form != "halves" and draw.random() < 0.3
    output = "" if in_place else f'Tensor(name="out", role="output", shape={shape}, dtype={(kind or "T")!r}),'
    many, few = ((32, 20, 37), (17, 48)) if form.startswith("across") else ((1, 3, 37), (2, 5))  # tiles want both
    sizes = [(draw.choice(many), draw.choice((16, 64, 272))), (draw.choice(few), draw.choice((12, 37, 92)))]
    workloads = " ".join(f'Workload(axes={{"rows": {r}, "cols": {c}}}, dtype={dtype!r}),' for r, c in sizes)
    spec = SPEC.format(dtype=dtype, role="inout" if in_place else "input", output=output, workloads=workloads)
    name = "x" if in_place else "out"
    return spec, f"import torch\n\n\ndef reference(x, y, w, places):\n    return {{{name!r}: {body}}}\n", form


def tried(seed: int, in_emulation: bool) -> tuple[str, str, str]:
    """(form, `right`, `refused` or `wrong`, what was wrong)."""
    spec, reference, form = drawn(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "spec.py").write_text(spec)
        (folder / "reference.py").write_text(reference)
        kernel = catalog.load(str(folder))
        meaning = Meaning(kernel.spec, reference)
        sized = {kernel.spec.dtypes[0]: list(kernel.spec.workloads)}
        try:
            made: Schedule = cpu_schedule(meaning.cpu_program, kernel.spec.dtypes, sized)
            text = meaning.text(made)
            for program in meaning.programs():
                check(program, reference)
            cuda = (
                meaning.text(schedule(meaning.program, kernel.spec.dtypes, sized, ScheduleDefaults()))
                if in_emulation
                else ""
            )
        except NoProgram as none:
            return form, "wrong" if "disagrees" in str(none) else "refused", str(none)
        (folder / "candidate.cpp").write_text(text)
        flags = [flag for flag in cpu.FLAGS if flag != "-O3"]
        command = ["g++", "-O1", *flags, str(folder / "candidate.cpp"), "-o", str(folder / "candidate.so")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return form, "wrong", done.stderr[:500]
        library = ctypes.CDLL(str(folder / "candidate.so"))
        for workload in kernel.spec.workloads:
            for offset in (0, 1):
                if fault := run(kernel.spec, kernel, library, workload, offset):
                    return form, "wrong", f"C++, {workload.label}, {offset} off: {fault}"
        if cuda:
            (folder / "candidate.cu").write_text(cuda)
            emulation = emulated(folder, folder / "candidate.cu", "0", "1")
            if emulation.returncode:
                return form, "wrong", f"CUDA: {emulation.stdout[-300:]}{emulation.stderr[-300:]}"
    return form, "right", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--emulated", type=float, default=0.1, help="share that also goes through the CUDA emulation")
    options = parser.parse_args()
    outcomes: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    for seed in range(options.first, options.first + options.count):
        form, outcome, why = tried(seed, random.Random(-seed - 1).random() < options.emulated)
        outcomes[form, outcome] += 1
        if outcome != "right":
            print(f"seed {seed}, {form}: {outcome}: {why}", flush=True)
    for (form, outcome), count in sorted(outcomes.items()):
        print(f"{form:10} {outcome:8} {count}")
    print(f"{options.count} references in {time.monotonic() - began:.0f} s")
    return 1 if any(outcome == "wrong" for _, outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
