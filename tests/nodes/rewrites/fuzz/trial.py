"""What rewrites make of a program computes what the program computed: many texts in one compilation, each run by itself.

CUDA runs in the emulation, the threads of a block forwards and backwards, on a device of many and of one multiprocessor;
C++ runs with one thread and with three. Tensors lie between guards, aligned to 16 bytes and one element off.
"""

from __future__ import annotations

import functools
import re
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

from harness import device
from harness.records import DeviceFacts
from kernels.spec import Size, Spec, Tensor, Workload
from nodes.policies.rules import apply_step
from nodes.rewrites import Facts
from tests.nodes.rewrites.emulate import emulation

HERE = Path(__file__).parent
DEVICES = {
    "cuda": DeviceFacts(device="cuda", name="H200", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20),
    "cpu": DeviceFacts(
        device="cpu",
        name="this one",
        architecture=device.facts("cpu").architecture,
        units=8,
        last_level_cache_bytes=32 << 20,
    ),
}
FLAGS = {
    "cuda": ("-std=c++17", "-O0", "-w", "-fno-strict-aliasing", "-fsanitize=alignment",
             "-fsanitize-undefined-trap-on-error", f"-I{emulation.HERE}", f"-I{HERE}"),
    "cpu": ("-std=c++17", "-O2", "-w", "-march=native", "-fopenmp", "-ffp-contract=off", f"-I{HERE}"),
}  # fmt: skip
C_TYPES = {
    "cuda": {
        "float32": "float",
        "float16": "__half",
        "bfloat16": "__nv_bfloat16",
        "int64": "int64_t",
        "uint8": "uint8_t",
    },
    "cpu": {"float32": "float", "float16": "_Float16", "int64": "int64_t", "uint8": "uint8_t"},
}
MOST_SECONDS = 20
"""Of the processor's time, for one list of steps on one text."""
GUARD = 64
FILL = 77

Kind = Literal["right", "raises", "does not end", "does not compile", "crashes", "wrong", "broken program"]
"""A broken program fails before any step, or computes something else in another order of its threads: a fault of ours."""


@dataclass(frozen=True)
class Program:
    """A source with what it is called with. Its axes are `rows` and `n`, the arguments tensors and then those two."""

    language: str
    text: str
    spec: Spec
    aligned: bool = False
    """It loads vectors itself: tensors begin on 16 bytes, and rows are even."""
    even: bool = False
    """It is not run on rows of odd length."""
    exact: bool = False
    """Nothing is summed up and no function is called whose last digits may differ."""

    @property
    def facts(self) -> Facts:
        return Facts(spec=self.spec, device=DEVICES[self.language])


INPUTS = {
    "x": Tensor(name="x", role="input", shape=("rows", "n"), values=("ordinary",)),
    "z": Tensor(name="z", role="input", shape=("rows", "n"), values=("ordinary",)),
    "pair": Tensor(name="pair", role="input", shape=("rows", "2*n"), values=("ordinary",)),
    "table": Tensor(name="table", role="input", shape=("rows", "n"), values=("ordinary",), constant=True),
    "w": Tensor(name="w", role="input", shape=("n",), values=("ordinary",), constant=True),
    "s": Tensor(name="s", role="input", shape=("rows",), dtype="float32", values=("ordinary",)),
    "mask": Tensor(name="mask", role="input", shape=("rows", "n"), dtype="uint8", values=("range:0:2",)),
    "index": Tensor(name="index", role="input", shape=("rows",), dtype="int64", values=("index:rows",)),
}
OUTPUTS = {
    "y": Tensor(name="y", role="inout", shape=("rows", "n"), values=("ordinary",)),
    "v": Tensor(name="v", role="inout", shape=("rows", "n"), values=("ordinary",)),
    "out": Tensor(name="out", role="inout", shape=("rows",), dtype="float32", values=("ordinary",)),
    "sums": Tensor(name="sums", role="inout", shape=("n",), dtype="float32", values=("ordinary",)),
}
ARRAYS = {**INPUTS, **OUTPUTS}
"""What programs read and write, in the order of their parameters."""
SHAPES = ((1, 1), (3, 36), (2, 129), (5, 64), (1, 1030), (2, 520))
EVEN_SHAPES = ((1, 4), (3, 36), (2, 128), (5, 64), (1, 1032), (2, 520))


def spec_of(language: str, dtype: str, arrays: Collection[str], timed: tuple[int, int], even: bool) -> Spec:
    """Timed on one size, and run on small ones."""
    axes = [{"rows": rows, "n": n} for rows, n in (timed, *(EVEN_SHAPES if even else SHAPES))]
    workloads = [Workload(axes=a, dtype=dtype, timed=a is axes[0], devices=(language,)) for a in axes]
    return Spec(
        name="fuzz", summary="a random program", axes=("rows", "n"), dtypes=(dtype,), workloads=tuple(workloads),
        arguments=(*(ARRAYS[a] for a in ARRAYS if a in arrays), Size(name="rows"), Size(name="n")),
    )  # fmt: skip


def of_text(language: str, text: str, timed: tuple[int, int], flags: Collection[str]) -> Program:
    """A program from its text alone: the entry's name says its data type, and its parameters are arrays."""
    match = re.search(r'extern "C" void fuzz_(\w+)\(([^)]*)\)', text)
    if match is None:
        raise ValueError("no function `fuzz_DTYPE` with C linkage")
    names = {parameter.split()[-1].lstrip("*") for parameter in match[2].split(",")} & ARRAYS.keys()
    spec = spec_of(language, match[1], names, timed, even="even" in flags)
    return Program(language, text, spec, **dict.fromkeys(flags, True))


@dataclass(frozen=True)
class Verdict:
    kind: Kind
    text: str
    """What the steps made of the program."""
    said: str = ""

    @property
    def failed(self) -> bool:
        return self.kind != "right"


class DoesNotEnd(BaseException):
    """Not an Exception: what applies a step goes on after those."""


@contextmanager
def _limited() -> Iterator[None]:
    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise DoesNotEnd

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def rewritten(program: Program, steps: Sequence[str]) -> Verdict:
    """The text after the steps, not yet run: `right` until then."""
    text, facts = program.text, program.facts
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            with _limited():
                for step in steps:
                    text = apply_step(step, text, facts) or text
        except DoesNotEnd:
            return Verdict("does not end", text, f"{step} after {MOST_SECONDS} s")
        except RuntimeWarning as error:
            return Verdict("raises", text, str(error))
    return Verdict("right", text)


def applied(program: Program, steps: Sequence[str]) -> tuple[str, ...]:
    """Those of the steps that change something; the one that raises or does not end is among them."""
    found: tuple[str, ...] = ()
    text = program.text
    for step in steps:
        after = rewritten(program, (*found, step))
        if after.kind != "right" or after.text != text:
            found, text = (*found, step), after.text
        if after.kind != "right":
            break
    return found


class Bench:
    """Judges texts, and keeps the compiled headers in a folder that goes with it."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="fuzz_")
        self.folder = Path(self._scratch.name)
        self._runs = threading.Lock()
        """Its files are those of one run."""

    def judge(self, pairs: Sequence[tuple[Program, Sequence[str]]]) -> list[Verdict]:
        """One verdict a pair of a program and the steps to apply, or the text that they made."""
        return self.rewritten(pairs)()

    def rewritten(self, pairs: Sequence[tuple[Program, Sequence[str]]]) -> Callable[[], list[Verdict]]:
        """What is left to do for the verdicts once the steps are applied: most of it is the compiler's, so that a thread may wait for
        that while others go on."""
        verdicts = [Verdict("right", s) if isinstance(s, str) else rewritten(program, s) for program, s in pairs]
        texts: dict[tuple[str, str], int] = {}
        jobs: list[tuple[Program, str]] = []
        for (program, _), verdict in zip(pairs, verdicts, strict=True):
            for text in (program.text, verdict.text):
                if verdict.kind == "right" and verdict.text != program.text and (program.text, text) not in texts:
                    texts[program.text, text] = len(jobs)
                    jobs.append((program, text))

        def judged() -> list[Verdict]:
            with self._runs:
                ends = self._run(jobs)
            for at, ((program, _), verdict) in enumerate(zip(pairs, verdicts, strict=True)):
                if (program.text, verdict.text) not in texts or verdict.kind != "right":
                    continue
                before, after = ends[texts[program.text, program.text]], ends[texts[program.text, verdict.text]]
                broken = (before.said or before.kind) if before.kind != "right" else _unsteady(before)
                kind, said = after.kind, after.said
                if broken:
                    kind, said = "broken program", f"{before.kind}: {broken}"
                elif kind == "right":
                    said = _differences(program, before, after)
                    kind = "wrong" if said else "right"
                verdicts[at] = Verdict(kind, verdict.text, said)
            return verdicts

        return judged

    def _run(self, jobs: Sequence[tuple[Program, str]]) -> list[_End]:
        ends: list[_End] = [_End() for _ in jobs]
        for language in sorted({program.language for program, _ in jobs}):
            mine = [n for n, (program, _) in enumerate(jobs) if program.language == language]
            for n, end in zip(mine, self._run_all(language, [jobs[n] for n in mine]), strict=True):
                ends[n] = end
        return ends

    def _run_all(self, language: str, jobs: list[tuple[Program, str]]) -> list[_End]:
        ends = [_End() for _ in jobs]
        left = dict(enumerate(jobs))
        binary, refused = self._compile(language, left)
        for n, said in refused.items():
            ends[n] = _End("does not compile", said)
            del left[n]
        if not left:
            return ends
        layouts = {n: _layout(program) for n, (program, _) in left.items()}
        memory, command = self._laid_out(layouts)
        done = subprocess.run(
            [binary, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        said: list[str] = []
        statuses: dict[int, tuple[int, str]] = {}
        for line in done.stdout.splitlines():
            match = re.fullmatch(r"(\d+) (\d+)", line)
            if match is None:
                said.append(line)
            else:
                statuses[int(match[1])], said = (int(match[2]), "\n".join(said)), []
        for n, layout in layouts.items():
            status, words = statuses[n]
            end = ends[n] = _End(said=words)
            if status != 0:
                ended = status in {128 + signal.SIGXCPU, 128 + signal.SIGKILL}
                end.kind = "does not end" if ended or "for ever" in words else "crashes"
                end.said = f"status {status} {words}"
            else:
                end.outputs = _outputs(layout, memory)
        return ends

    def _laid_out(self, layouts: dict[int, list[_Run]]) -> tuple[torch.Tensor, list[str]]:
        """The file with all tensors as bytes, and the driver's arguments."""
        size = 0
        command: list[str] = []
        for n, runs in layouts.items():
            for run in runs:
                size = run.place(size)
                places = [str(p) for p in run.places]
                command += [str(n), str(run.rows), str(run.n), str(int(run.backwards)), str(run.units), *places, ","]
        path = self.folder / "tensors"
        path.unlink(missing_ok=True)
        memory = torch.from_file(str(path), shared=True, size=max(size, 1), dtype=torch.uint8)
        memory.fill_(FILL)
        for runs in layouts.values():
            for run in runs:
                run.fill(memory)
        return memory, [str(path), *command]

    @functools.cache  # noqa: B019, a bench is one session
    def _headers(self, language: str) -> str:
        """The driver's header, compiled once."""
        header = self.folder / f"{language}_all.h"
        header.write_text(f'#include "{language}_driver.h"\n')
        subprocess.run(["g++", *FLAGS[language], "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
        return header.name

    def _compile(self, language: str, texts: dict[int, tuple[Program, str]]) -> tuple[Path, dict[int, str]]:
        """The program of those that compile, and what the compiler says of the others."""
        refused: dict[int, str] = {}
        binary = self.folder / "batch"
        while len(refused) < len(texts):
            wanted = {n: job for n, job in texts.items() if n not in refused}
            said = self._compiled(language, wanted, binary)
            if said is None:
                break
            suspects = {int(n) for n in re.findall(r"\btext_(\d+):\d+", said)} & wanted.keys()
            found = {}
            for n in sorted(suspects) or sorted(wanted):
                alone = self._compiled(language, {n: texts[n]}, self.folder / "alone")
                if alone is not None:
                    found[n] = alone
            if not found:
                raise RuntimeError(f"texts that compile each for itself do not compile together:\n{said[:4000]}")
            refused |= found
        return binary, refused

    def _compiled(self, language: str, texts: dict[int, tuple[Program, str]], binary: Path) -> str | None:
        """What the compiler says of a program of these, None where it is content."""
        header = self._headers(language)
        entry = "int main(int, char** words) {\n  return driver::main(words, {%s}, prepare);\n}\n"
        parts = [_boxed(program, n, text) for n, (program, text) in texts.items()]
        listed = ", ".join(f"{{{n}, text_{n}::run}}" for n in texts)
        path = binary.with_suffix(".cpp")
        path.write_text(f'#include "{header}"\n' + "".join(parts) + '\n#line 1 "main"\n' + entry % listed)
        command = ["g++", *FLAGS[language], f"-I{self.folder}", path, "-o", binary]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        return built.stderr if built.returncode else None


@dataclass
class _End:
    kind: Kind = "right"
    said: str = ""
    outputs: list[tuple[str, dict[str, torch.Tensor], str]] = field(default_factory=list)
    """Of each run: its label, the tensors afterwards, and what was written that must not be."""


@dataclass
class _Run:
    spec: Spec
    dtype: str
    rows: int
    n: int
    offset: int
    backwards: bool
    units: int
    places: list[int] = field(default_factory=list)
    first: int = 0

    @property
    def label(self) -> str:
        order = "backwards" if self.backwards else "forwards"
        return f"rows={self.rows} n={self.n}, {self.offset} elements off, {order}, {self.units} multiprocessors"

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        return self.spec.shape(tensor, {"rows": self.rows, "n": self.n})

    def kind(self, tensor: Tensor) -> torch.dtype:
        return getattr(torch, self.dtype if tensor.dtype == "T" else tensor.dtype)

    def bytes(self, tensor: Tensor) -> int:
        return torch.Size(self.shape(tensor)).numel() * self.kind(tensor).itemsize

    def place(self, at: int) -> int:
        """Takes room from `at` on; the first byte behind it."""
        self.first = at
        for tensor in self.spec.tensors:
            item = self.kind(tensor).itemsize
            self.places.append(at + GUARD * 8 + self.offset * item)
            at = (self.places[-1] + self.bytes(tensor) + GUARD * 8 + 255) // 256 * 256
        return at

    def view(self, memory: torch.Tensor, number: int) -> torch.Tensor:
        tensor, at = self.spec.tensors[number], self.places[number]
        return memory[at : at + self.bytes(tensor)].clone().view(self.kind(tensor)).view(self.shape(tensor))

    def fill(self, memory: torch.Tensor) -> None:
        for number, tensor in enumerate(self.spec.tensors):
            if tensor.role == "output":
                continue
            workload = Workload(axes={"rows": self.rows, "n": self.n}, dtype=self.dtype)
            values = emulation.values(self.spec, tensor, workload, number)
            at = self.places[number]
            memory[at : at + self.bytes(tensor)] = values.flatten().view(torch.uint8)


def _layout(program: Program) -> list[_Run]:
    spec = program.spec
    off = 0 if program.aligned else 1
    ways = (
        [(0, False, 132), (0, True, 1), (off, True, 132)]
        if program.language == "cuda"
        else [(0, False, 1), (off, True, 1)]
    )
    return [
        _Run(spec, w.dtype, w.axes["rows"], w.axes["n"], *way) for w in spec.workloads if not w.timed for way in ways
    ]


def _outputs(runs: list[_Run], memory: torch.Tensor) -> list[tuple[str, dict[str, torch.Tensor], str]]:
    found = []
    for run in runs:
        outside, at = "", run.first
        for place, tensor in zip(run.places, run.spec.tensors, strict=True):
            end = place + run.bytes(tensor)
            if (memory[at:place] != FILL).any() or (memory[end : end + GUARD * 8] != FILL).any():
                outside = f"{tensor.name}: written outside its bounds"
            at = end + GUARD * 8
        found.append((run.label, {t.name: run.view(memory, n) for n, t in enumerate(run.spec.tensors)}, outside))
    return found


def _unsteady(end: _End) -> str:
    """What a program writes where it must not, or differently in another order of its threads; "" where it is right."""
    shapes: dict[str, dict[str, torch.Tensor]] = {}
    for label, outputs, outside in end.outputs:
        first = shapes.setdefault(label.partition(",")[0], outputs)
        wrong = outside or "".join(_difference(outputs[name], first[name], True) for name in outputs)
        if wrong:
            return f"{label}: {wrong}"
    return ""


def _differences(program: Program, before: _End, after: _End) -> str:
    roles = {tensor.name: tensor.role for tensor in program.spec.tensors}
    for (label, old, _), (_, new, outside) in zip(before.outputs, after.outputs, strict=True):
        for name, want in old.items():
            exact = program.exact or roles[name] == "input"
            wrong = outside or _difference(new[name], want, exact)
            if wrong:
                return f"{label}: {wrong if outside else f'{name}: {wrong}'}"
    return ""


def _difference(got: torch.Tensor, want: torch.Tensor, exact: bool) -> str:
    """Sums in another order differ in their last digits, by whatever is large among what was summed."""
    a, b = got.double(), want.double()
    near = (a == b) | (a.isnan() & b.isnan())
    if not exact and got.dtype.is_floating_point:
        step = {torch.float16: 2**-9, torch.bfloat16: 2**-6}.get(got.dtype, 1e-4)
        scale = b.abs().nan_to_num(posinf=0, neginf=0).max() if b.numel() else b.sum()
        near |= (a - b).abs() <= step * (b.abs() + scale) + 1e-6
    return emulation.wrong_places(near, got, want)


def _boxed(program: Program, number: int, text: str) -> str:
    """A text in a namespace of its own, with the function `run` that the driver calls."""
    language, spec = program.language, program.spec
    text = emulation.host_source(text) if language == "cuda" else text
    text = text.replace('#include "cuda_emulation.h"\n', "")
    defined = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.M)
    text = re.sub(r"^[ \t]*#[ \t]*include[^\n]*", "", text, flags=re.M)  # the driver's header has them all
    # Every text has a namespace of its own; what it declares of the C library stays what it is.
    text = re.sub(r'extern "C"\s*\{(?!\s*#pragma omp declare simd)', "inline namespace linked {", text)
    text = re.sub(r'extern "C"\s+(?!\{)', "", text)
    undone = "".join(f"#undef {name}\n" for name in dict.fromkeys(defined))
    kinds = _kinds(language, spec, spec.dtypes[0])
    passed = ", ".join([*(f"({kind})tensors[{n}]" for n, kind in enumerate(kinds)), "rows", "n"])
    call = f"{spec.entry_names(spec.dtypes[0])[0]}({passed}{', nullptr' if language == 'cuda' else ''});"
    run = f"void run(void** tensors, int64_t rows, int64_t n) {{ {call} }}\n"
    return f'namespace text_{number} {{\n#line 1 "text_{number}"\n{text}\n#line 1 "box_{number}"\n{undone}{run}}}\n'


def _kinds(language: str, spec: Spec, dtype: str) -> list[str]:
    types = C_TYPES[language]
    kinds = [types[dtype if t.dtype == "T" else t.dtype] for t in spec.tensors]
    return [f"{'const ' if t.role == 'input' else ''}{kind}*" for kind, t in zip(kinds, spec.tensors, strict=True)]


def entry(language: str, spec: Spec, body: str) -> str:
    """The entry point of a program, of one data type."""
    kinds = _kinds(language, spec, spec.dtypes[0])
    stream = ", cudaStream_t stream" if language == "cuda" else ""
    parameters = ", ".join(f"{kind} {t.name}" for kind, t in zip(kinds, spec.tensors, strict=True))
    name = spec.entry_names(spec.dtypes[0])[0]
    return f'extern "C" void {name}({parameters}, int64_t rows, int64_t n{stream}) {{\n{body}}}\n'
