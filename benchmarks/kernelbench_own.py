"""Drafts of KernelBench's problems judged by its own evaluation, on all GPUs of a machine: what a stranger would measure.

    python -m benchmarks.kernelbench_own --kernelbench CHECKOUT --out FOLDER [--drafts FOLDER] [--problems 1,2:7] [--seconds N]
    python -m benchmarks.kernelbench_own --kernelbench CHECKOUT --out FOLDER --prepare      # drafts alone, no GPU needed
    python -m benchmarks.kernelbench_own --kernelbench CHECKOUT --out FOLDER --show         # the tables of a run, again

Each draft is a file of its own (`run.py export`'s form) and judged by `eval_kernel_against_ref` as KernelBench's scripts ask it: five
correctness trials, 100 timed calls, float32, torch's TF32 defaults. Afterwards torch.compile's default is timed by `measure_ref_program_time`
on those that are right, in the seed's order, and the draft and eager again beside it, so that a later machine may do that, of another model, too;
with `--mode max-autotune` that mode, with `--sample N` the first N of that order alone (a run into a folder whose rows are there judges nothing anew).
What max-autotune times while it compiles needs the GPU: all are compiled into torch's cache first, for at most TUNING of --seconds, before the first is timed;
who has not compiled by then has no row and is asked again by a later run.
Its evaluation runs unchanged, with these turns around it:

- Drafts are made and compiled side by side while GPUs judge those that are ready. A judge is a fork of this process, which has torch imported.
- Several judges share a GPU, but whoever times has it alone: calls are under a shared lock, KernelBench's timing function under an exclusive
  one. None is held while `get_inputs` or a constructor runs, or torch.compile's compiler.
- torch.rand within `get_inputs` gives the same bits sooner (`kernelbench_draws.py`).
- A judge that ran out of GPU memory is asked again, alone on its GPU.

The order is drawn from --seed, the levels mixed evenly, and nothing is judged more than WINDOW places before the first that waits, so that of a run that is
cut off what was judged is a sample of all. FOLDER/rows.jsonl has a line a problem as soon as it is judged; a run into the same folder goes on. `drafts/` are the drafts.
At the end FOLDER/runs/levelN/eval_results.json and FOLDER/timing/*.json are what KernelBench's scripts/benchmark_eval_analysis.py reads
(run_name=levelN eval_results_dir=FOLDER/runs baseline_file=FOLDER/timing/baseline_time_torch.json).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.kernelbench_draws import build, with_rand
from compiler.draft import NoDraft, draft
from harness.export.one_file import standalone
from harness.protocol_kernelbench import KernelBenchResult, add_to_baseline, add_to_results
from harness.records import Interval
from harness.report import fast_p
from kernels import suites
from kernels.importers import kernelbench

SEED, TRIALS, CALLS = 42, 5, 100
"""Of KernelBench's scripts."""
PREFIX = {"default": "", "max-autotune": "autotune_"}
"""Of what a row has of a mode of torch.compile: its time, and the draft's and eager's beside it."""
HOST_BYTES = 3
"""What a judge holds on the host, at most, for each byte of inputs: a draw and what get_inputs makes of it."""
WINDOW = 60
"""Of large inputs a few fit on the host at once; meanwhile so many of those behind them may be judged."""
LEAD = 0.3
"""Of the order, by which level 3 is prepared before it is judged: networks take three times as long to draft."""
CONTEXT_BYTES = 5 << 30
"""On its GPU, with weights: beside two draws, the outputs of two trials, and what eager and `allclose` make on the way."""
UNKNOWN_BYTES = 10
"""For each byte of inputs, where the module does not run without data."""
TUNING = 0.6
OPERATORS = 5000
LAST_FILE = 900
BUILD_S = 300.0
FORK = get_context("fork")


@dataclass
class Problem:
    path: Path
    level: int
    number: int
    input_bytes: int = 0
    gpu_bytes: int = CONTEXT_BYTES
    alone: bool = False
    """It ran out of memory beside others."""
    tuned: bool = False
    """What max-autotune has compiled is in torch's cache."""
    prepared: dict[str, Any] | None = None
    row: dict[str, Any] | None = None
    place: float = 0.0
    """In the order, from 0 to 1."""

    @property
    def name(self) -> str:
        return f"level{self.level}/{self.path.stem}"

    def file(self, folder: Path, suffix: str) -> Path:
        return folder / f"level{self.level}" / f"{self.path.stem}{suffix}"


@dataclass
class Work:
    """A process of ours and what it works on."""

    kind: str
    problem: Problem
    process: BaseProcess
    answer: Path
    began: float
    limit_s: float
    gpu: int = -1


@dataclass
class Machine:
    gpus: list[str]
    """Names as CUDA_VISIBLE_DEVICES takes them."""
    memory_bytes: int
    """Of the smallest GPU."""
    capability: tuple[int, int]
    device: str
    host_bytes: int
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", required=True, type=Path, help="a checkout")
    parser.add_argument("--out", required=True, type=Path, help="rows.jsonl, drafts and logs go there")
    parser.add_argument("--drafts", type=Path, help="OUT of an earlier --prepare; what it lacks is drafted")
    parser.add_argument("--problems", default="1,2,3", help="LEVEL or LEVEL:NUMBER, ...")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--seconds", type=float, default=36000, help="end then, with what is judged")
    parser.add_argument("--limit", type=float, default=240, help="seconds a problem")
    parser.add_argument("--judges", type=int, default=4, help="processes a GPU")
    parser.add_argument("--builders", type=int, help="compilers at once; default: the cores that judges leave")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--mode", default="default", choices=tuple(PREFIX), help="of torch.compile")
    parser.add_argument("--sample", type=int, help="torch.compile beside the first so many in the seed's order")
    parser.add_argument("--prepare", action="store_true", help="drafts alone")
    parser.add_argument("--show", action="store_true", help="the tables of what OUT has")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    problems = find_problems(options.kernelbench, options.problems)
    if not options.show:
        problems = mixed(problems, options.seed)
        machine = None if options.prepare else look_around()
        Session(options, problems, machine, deadline).run()
    if not options.prepare:
        write_as_kernelbench(problems, read_rows(options.out), options.out)
        show(problems, read_rows(options.out), Console(width=150))


def find_problems(checkout: Path, wanted: str) -> list[Problem]:
    asked = [tuple(map(int, one.split(":"))) for one in wanted.split(",")]
    found = []
    for path in suites.problems(str(checkout), tuple(sorted({one[0] for one in asked}))):
        title = kernelbench.title(path)
        if (title.level,) in asked or (title.level, title.number) in asked:
            found.append(Problem(path, int(title.level or 0), int(title.number or 0)))
    if not found:
        raise SystemExit(f"{checkout} has no problem {wanted}")
    return found


def mixed(problems: list[Problem], seed: int) -> list[Problem]:
    """In the seed's order, the levels evenly: the first so many are a sample of all."""
    order = random.Random(seed).sample(problems, len(problems))
    for level in {problem.level for problem in order}:
        mine = [problem for problem in order if problem.level == level]
        for at, problem in enumerate(mine):
            problem.place = (at + 0.5) / len(mine)
    return sorted(order, key=lambda problem: problem.place)


def look_around() -> Machine:
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total,compute_cap,name", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    rows = [[part.strip() for part in line.split(",")] for line in lines]
    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        rows = [row for name in named.split(",") for row in rows if name in (row[0], row[1])]
    available = re.search(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text())
    major, minor = map(int, rows[0][3].split("."))
    return Machine(
        gpus=[row[0] for row in rows],
        memory_bytes=min(int(row[2]) for row in rows) << 20,
        capability=(major, minor),
        device=rows[0][4],
        host_bytes=int((int(available[1]) if available else 0) * 1024 * 0.75),
    )


class Session:
    """One process, one loop: begins what can be begun, takes in what has ended."""

    def __init__(self, options: argparse.Namespace, problems: list[Problem], machine: Machine | None, deadline: float):
        self.options, self.problems, self.machine, self.deadline = options, problems, machine, deadline
        self.out: Path = options.out.resolve()
        self.began = time.monotonic()
        self.tuning_ends = self.began + TUNING * (deadline - self.began)
        self.works: list[Work] = []
        self.to_compile: list[Problem] = []
        cores = machine.cores if machine else len(os.sched_getaffinity(0))
        judging = options.judges * len(machine.gpus) if machine else 0
        self.builders: int = options.builders or max(2, cores - judging)
        for one in read_rows(self.out).values():
            for problem in problems:
                if problem.name == one["problem"]:
                    problem.row = one

    def run(self) -> None:
        if self.options.drafts:
            shutil.copytree(self.options.drafts / "drafts", self.out / "drafts", dirs_exist_ok=True)
        import_what_it_imports()
        self.rand = build(self.out)
        self.to_compile = [] if self.options.no_compile else self.problems[: self.options.sample]
        measure = self.to_compile or [problem for problem in self.problems if problem.row is None]
        with FORK.Pool(min(16, self.builders)) as pool:
            for problem, sizes in zip(measure, pool.map(memory, [one.path for one in measure]), strict=True):
                problem.input_bytes, problem.gpu_bytes = sizes
        waiting = sorted(
            (problem for problem in self.problems if problem.row is None),
            key=lambda problem: problem.place - LEAD * (problem.level == 3),
        )
        waiting += self.without_time()
        while time.monotonic() < self.deadline:
            self.reap()
            while waiting and sum(work.kind == "prepare" for work in self.works) < self.builders:
                self.start("prepare", waiting.pop(0))
            if self.machine:
                self.fill_gpus()
            if not waiting and not self.works and not (self.machine and self.ready()):
                break
            time.sleep(0.02)
        for work in self.works:
            work.process.kill()
        self.say(f"{sum(problem.row is not None for problem in self.problems)} of {len(self.problems)} judged")

    def say(self, sentence: str) -> None:
        print(f"{time.monotonic() - self.began:5.0f} s  {sentence}", flush=True)

    def ready(self) -> list[tuple[str, Problem]]:
        """What a GPU could do next, in order; torch.compile only once every judge has begun."""
        busy = [work.problem for work in self.works if work.kind != "prepare"]
        judge = [one for one in self.problems if one.prepared and not one.row and one not in busy]
        if judge or any(one.row is None and one not in busy for one in self.problems):
            return [("judge", one) for one in judge]
        if self.options.mode == "max-autotune" and time.monotonic() < self.tuning_ends:
            tune = [one for one in self.without_time() if not one.tuned]
            if any(one not in busy for one in tune):
                return [("tune", one) for one in tune if one.prepared and one not in busy]
            if tune:
                return []
        rest = [one for one in self.without_time() if one.tuned or self.options.mode != "max-autotune"]
        return [("compile", one) for one in rest if one.prepared and one not in busy]

    def without_time(self) -> list[Problem]:
        """The right ones that torch.compile is still to be timed beside."""
        time_of = PREFIX[self.options.mode] + "compile_runtime"
        return [one for one in self.to_compile if one.row and speedup(one.row) and time_of not in one.row]

    def fill_gpus(self) -> None:
        assert self.machine
        ready, order = self.ready(), {problem.name: at for at, problem in enumerate(self.problems)}
        for kind, problem in ready:
            if order[problem.name] > order[ready[0][1].name] + WINDOW:
                return
            on_gpus = [work for work in self.works if work.gpu >= 0]
            host = sum(host_need(work.problem) for work in on_gpus)
            if on_gpus and host + host_need(problem) > self.machine.host_bytes:
                continue
            by_load = sorted(range(len(self.machine.gpus)), key=lambda gpu: sum(work.gpu == gpu for work in on_gpus))
            for gpu in by_load:
                mine = [work for work in on_gpus if work.gpu == gpu]
                if mine and (problem.alone or any(work.problem.alone for work in mine)):
                    continue
                needs = [gpu_need(one, self.machine) for one in (problem, *(work.problem for work in mine))]
                if len(mine) >= self.options.judges or sum(needs) > self.machine.memory_bytes:
                    continue
                self.start(kind, problem, gpu)
                break
            if all(sum(work.gpu == gpu for work in self.works) >= self.options.judges for gpu in by_load):
                return

    def start(self, kind: str, problem: Problem, gpu: int = -1) -> None:
        answer, log = problem.file(self.out / kind, ".json"), problem.file(self.out / kind, ".log")
        answer.parent.mkdir(parents=True, exist_ok=True)
        answer.unlink(missing_ok=True)
        task: Callable[[], dict[str, Any]]
        if kind == "prepare":
            capability = self.machine.capability if self.machine else None
            task = lambda: prepare(problem, self.out / "drafts", capability)  # noqa: E731
        else:
            assert self.machine
            name, folder = self.machine.gpus[gpu], self.out / f"gpu{gpu}"
            asked = (problem, self.options.kernelbench.resolve(), name, folder, self.rand, self.out)
            mode, tune = self.options.mode, kind == "tune"
            task = lambda: judge(*asked) if kind == "judge" else compile_reference(*asked, mode, tune)  # noqa: E731
        process = FORK.Process(target=in_child, args=(task, answer, log, kind == "prepare"))
        process.start()
        limit_s = BUILD_S if kind == "prepare" else self.options.limit
        self.works.append(Work(kind, problem, process, answer, time.monotonic(), limit_s, gpu))

    def reap(self) -> None:
        for work in list(self.works):
            late = time.monotonic() - work.began > work.limit_s
            late |= work.kind == "tune" and time.monotonic() > self.tuning_ends
            if work.process.is_alive() and not late:
                continue
            work.process.kill()
            work.process.join()
            self.works.remove(work)
            seconds = round(time.monotonic() - work.began, 1)
            if work.answer.is_file():
                answer = json.loads(work.answer.read_text())
            else:
                why = (
                    f"no answer in {min(seconds, work.limit_s):.0f} s"
                    if late
                    else f"the process died ({work.process.exitcode})"
                )
                answer = {"why": why}
            self.take(work, answer | {"seconds": seconds})

    def take(self, work: Work, answer: dict[str, Any]) -> None:
        problem = work.problem
        if work.kind == "prepare":
            problem.prepared = answer
            if answer["why"] and problem.row:
                self.to_compile.remove(problem)
                self.say(f"{problem.name}: {answer['why']}; torch.compile is not timed beside it")
            elif answer["why"]:
                self.write(problem, {"correctness": False, "why": answer["why"], "prepare_s": answer["seconds"]})
            elif not self.machine:
                self.say(f"{problem.name} drafted, {answer['seconds']:.0f} s")
        elif "out of memory" in json.dumps(answer) and not problem.alone:
            self.say(f"{problem.name}: out of GPU memory, again alone")
            problem.alone = True
        elif work.kind == "tune":
            problem.tuned = True
            if answer["why"]:  # it would compile while others wait to be timed
                self.to_compile.remove(problem)
            self.say(f"{problem.name}: {answer['why'] or 'compiled'}, {answer['seconds']:.0f} s")
        elif work.kind == "judge":
            prepared = problem.prepared or {}
            self.write(
                problem,
                answer
                | {"gpu": work.gpu, "alone": problem.alone, "prepare_s": prepared.get("seconds")}
                | {name: prepared[name] for name in ("draft_s", "build_s") if name in prepared},
            )
        else:
            assert problem.row
            of_mode = PREFIX[self.options.mode]
            names = ("compile_runtime", "compile_runtime_stats", "draft_beside", "eager_beside")
            row = problem.row | {of_mode + name: answer.get(name) for name in names}
            why = {f"{of_mode}compile_why": answer["why"]} if answer.get("why") else {}
            self.write(problem, row | {f"{of_mode}compile_s": answer["seconds"]} | why)

    def write(self, problem: Problem, row: dict[str, Any]) -> None:
        device = self.machine.device if self.machine else ""
        problem.row = {"problem": problem.name, "device": device, "torch": torch.__version__} | row
        with (self.out / "rows.jsonl").open("a") as file:
            file.write(json.dumps(problem.row) + "\n")
        self.say(line(problem.row))


def read_rows(out: Path) -> dict[str, dict[str, Any]]:
    """By problem, the last line of each."""
    path = out / "rows.jsonl"
    rows = [json.loads(text) for text in path.read_text().splitlines()] if path.is_file() else []
    return {row["problem"]: row for row in rows}


def host_need(problem: Problem) -> int:
    return problem.input_bytes * HOST_BYTES


def gpu_need(problem: Problem, machine: Machine) -> int:
    """An estimate, at most what leaves room for small ones: too little costs a second turn, alone."""
    return min(problem.gpu_bytes, int(machine.memory_bytes * 0.8))


def in_child(task: Callable[[], dict[str, Any]], answer: Path, log: Path, nice: bool) -> None:
    """The task's answer as a file that is there wholly or not at all; its output goes to the log."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if nice:
        os.nice(15)
    try:
        found = task()
    except Exception as error:  # noqa: BLE001 - whatever it was is this problem's answer
        found = {"why": f"{type(error).__name__}: {error}"[:400]}
    part = answer.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.replace(answer)
    os._exit(0)  # a judge's draft may hold threads and a context whose ends need not be waited for


class Largest(TorchDispatchMode):
    """The largest tensor that any operator makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.operators = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        if self.operators > OPERATORS:
            raise RuntimeError("a loop")
        made = function(*args, **(kwargs or {}))
        self.bytes = max([self.bytes, *map(tensor_bytes, tree_leaves(made))])
        return made


def tensor_bytes(one: Any) -> int:
    return one.numel() * one.element_size() if isinstance(one, torch.Tensor) else 0


def memory(path: Path) -> tuple[int, int]:
    """Bytes of the tensors that get_inputs gives and of what a judge needs of a GPU, found on torch's device without data."""
    space: dict[str, Any] = {}  # as KernelBench executes it
    inputs = 0
    try:
        with torch.device("meta"), torch.no_grad():
            exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), space)
            given = space["get_inputs"]()
            inputs = sum(map(tensor_bytes, given))
            model = space["Model"](*space["get_init_inputs"]())
            with Largest() as largest:
                outputs = sum(map(tensor_bytes, tree_leaves(model(*given))))
        return inputs, 2 * inputs + 4 * outputs + 2 * largest.bytes + CONTEXT_BYTES
    except Exception:  # noqa: BLE001 - code of a problem; what is too little costs a second turn, alone
        return inputs, UNKNOWN_BYTES * inputs + CONTEXT_BYTES


def prepare(problem: Problem, drafts: Path, capability: tuple[int, int] | None) -> dict[str, Any]:
    """Drafts where no draft is there yet; compiles it where a capability is given. {why: "" or a sentence, draft_s, build_s}.

    This process is a fork for this one problem, whose code it executes, as the judge's is. It sees no GPU: torch would make a context
    for the first fake tensor."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    path = problem.file(drafts, ".py")
    began = time.monotonic()
    if not path.is_file():
        try:
            source = draft(problem.path.read_text(encoding="utf-8-sig"), "cuda")
        except NoDraft as none:
            return {"why": f"no draft: {none}"}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(standalone(source))
    drafted_s, began = time.monotonic() - began, time.monotonic()
    if capability:
        # The file compiles itself when it is executed; a compiler needs no GPU, so none is taken.
        torch.cuda.is_available = lambda: True
        torch.cuda.get_device_capability = lambda *_: capability
        try:
            exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), {})
        except subprocess.CalledProcessError:
            return {"why": "the draft does not compile"}
    return {"why": "", "draft_s": round(drafted_s, 1), "build_s": round(time.monotonic() - began, 1)}


class Turn:
    """A GPU whose processes compute together and time alone. Who waits to be alone lets nobody in before it. A process's turn ends with it."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.gate, self.room = ((folder / name).open("w") for name in ("gate", "room"))
        # Files are closed in their order: this one behind the GPU's, so a process that ends keeps its turn until its memory is given back.
        fcntl.fcntl(self.room, fcntl.F_DUPFD_CLOEXEC, LAST_FILE)
        self.alone_s = 0.0

    def enter(self, how: int = fcntl.LOCK_SH) -> None:
        fcntl.flock(self.gate, fcntl.LOCK_EX)
        fcntl.flock(self.room, how)
        fcntl.flock(self.gate, fcntl.LOCK_UN)

    def leave(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        fcntl.flock(self.room, fcntl.LOCK_UN)

    def outside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which needs no GPU, called while others have it."""

        def called(*args: Any, **named: Any) -> Any:
            self.leave()
            try:
                return function(*args, **named)
            finally:
                self.enter()

        return called

    def alone(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            self.leave()
            self.enter(fcntl.LOCK_EX)
            began = time.monotonic()
            try:
                return function(*args, **named)
            finally:
                self.alone_s += time.monotonic() - began
                self.leave()
                self.enter()

        return called


@contextlib.contextmanager
def its_evaluation(
    checkout: Path, gpu: str, folder: Path, rand: Callable[..., torch.Tensor]
) -> Iterator[tuple[Turn, Any, Any]]:
    """(turn, KernelBench's modules eval and timing) with its timing and its loading in their turns."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    torch.set_num_threads(4)
    turn = Turn(folder)
    turn.enter()
    its, timing = import_kernelbench(checkout)
    load, load_custom = its.load_original_model_and_inputs, its.load_custom_model

    def load_in_turn(source: str, context: dict[str, Any]) -> tuple[Any, Any, Any]:
        made, get_init_inputs, get_inputs = turn.outside(load)(source, context)
        return turn.outside(made), get_init_inputs, turn.outside(with_rand(rand, get_inputs))

    def load_custom_in_turn(*args: Any) -> Any:
        made = turn.outside(load_custom)(*args)
        return made and turn.outside(made)

    its.load_original_model_and_inputs = load_in_turn
    its.load_custom_model = load_custom_in_turn
    timing.time_execution_with_cuda_event = turn.alone(timing.time_execution_with_cuda_event)
    yield turn, its, timing


def judge(
    problem: Problem, checkout: Path, gpu: str, folder: Path, rand: Callable[..., torch.Tensor], out: Path
) -> dict[str, Any]:
    with its_evaluation(checkout, gpu, folder, rand) as (turn, its, _):
        found = its.eval_kernel_against_ref(
            problem.path.read_text(),
            problem.file(out / "drafts", ".py").read_text(),
            num_correct_trials=TRIALS,
            num_perf_trials=CALLS,
            measure_performance=True,
            build_dir=str(folder / "build"),
            device=torch.device("cuda:0"),
            backend="cuda",
            precision=torch.float32,
        )
        names = ("compiled", "correctness", "runtime", "runtime_stats", "ref_runtime", "ref_runtime_stats")
        row = {} if found is None else {name: getattr(found, name) for name in names}
        metadata = {} if found is None else {name: str(value)[:400] for name, value in found.metadata.items()}
        return row | {"why": "", "metadata": metadata, "alone_s": round(turn.alone_s, 2)}


def compile_reference(
    problem: Problem,
    checkout: Path,
    gpu: str,
    folder: Path,
    rand: Callable[..., torch.Tensor],
    out: Path,
    mode: str,
    tune: bool,
) -> dict[str, Any]:
    """torch.compile's time, and beside it, on the same GPU, those of the draft and of eager; to `tune` is to compile alone. What
    max-autotune times while it compiles it times beside others that compute, while nobody else is timed."""
    with its_evaluation(checkout, gpu, folder, rand) as (turn, _, timing):
        from torch._inductor import compile_fx, config

        # Its workers import torch first, which for one or two kernels takes longer than they do.
        config.compile_threads = 4 if problem.level == 3 or tune else 1
        if mode == "default":  # needs no GPU
            compile_fx.compile_fx = turn.outside(compile_fx.compile_fx)
        measure = timing.time_execution_with_cuda_event

        def after_compiling(called: Callable[..., Any], inputs: list[Any], **named: Any) -> list[float]:
            called(*inputs)  # compiles, in company
            return [1.0] if tune else measure(called, inputs, **named)

        timing.time_execution_with_cuda_event = after_compiling
        text, found = problem.path.read_text(), {}
        drafted = problem.file(out / "drafts", ".py").read_text()
        texts = {
            "compile_runtime": (text, True),
            "draft_beside": (f"{text}\n{drafted}\nModel = ModelNew\n", False),
            "eager_beside": (text, False),
        }
        for name, (source, compiled) in texts.items():
            times = timing.measure_ref_program_time(
                problem.name,
                source,
                num_trials=CALLS,
                use_torch_compile=compiled,
                torch_compile_options=mode,
                device=torch.device("cuda:0"),
                precision="fp32",
            )
            found[name] = times["mean"] if times else None
            if tune:
                break
            if compiled and times:
                found["compile_runtime_stats"] = times
        return found | {"why": "" if found["compile_runtime"] else "torch.compile failed"}


def import_kernelbench(checkout: Path) -> tuple[Any, Any]:
    """Its modules eval and timing."""
    sys.path.insert(0, str(checkout / "src"))
    return importlib.import_module("kernelbench.eval"), importlib.import_module("kernelbench.timing")


def import_what_it_imports() -> None:
    """Before any fork, and what the exporter imports, which takes 3 s; nothing here may make a draft or look for a GPU, whose forks
    would have none. What it imports for asking models is replaced by empty modules where that is missing."""

    class Anything(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *_, **__: None

    for name in ("numpy", "pydantic", "litellm", "dotenv", "requests", "datasets", "openai", "tqdm"):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = Anything(name)
    for name in ("torch._dynamo", "torch.export._trace"):
        importlib.import_module(name)


def speedup(row: dict[str, Any], over: str = "ref_runtime") -> float | None:
    """Of a right draft, by its time beside what it is compared with; None otherwise."""
    runtime = row.get("runtime" if over == "ref_runtime" else over.replace("compile_runtime", "draft_beside")) or 0
    if not row.get("correctness") or not runtime > 0 or not (row.get(over) or 0) > 0:
        return None
    return row[over] / runtime


def why_wrong(row: dict[str, Any]) -> str:
    said = row.get("metadata") or {}
    words = [said[name] for name in ("correctness_issue", "compilation_error", "runtime_error") if said.get(name)]
    if "max_difference" in said:
        words.append(f"off by {said['max_difference']}, {said.get('correctness_trials', '')}")
    return (row.get("why") or "; ".join(words) or "no runtime: " + str(said.get("error_during_performance", "?")))[:200]


def line(row: dict[str, Any]) -> str:
    gain = speedup(row)
    words = f"right {gain:.2f}x of eager" if gain else f"WRONG {why_wrong(row)}"
    for mode, prefix in PREFIX.items():
        over = speedup(row, f"{prefix}compile_runtime")
        words += f", {over:.2f}x of torch.compile's {mode}" if over else ""
    return f"{row['problem'][:50]:50} {words}"


def solved(problem: Problem, row: dict[str, Any], over: str) -> fast_p.Solved:
    gain = speedup(row, over)
    gains = {over: Interval(median=gain, low=gain, high=gain)} if gain else {}
    return fast_p.Solved(
        level=problem.level,
        number=problem.number,
        name=problem.name,
        correct=bool(row.get("correctness")),
        speedup=gains,
    )


def write_as_kernelbench(problems: list[Problem], rows: dict[str, dict[str, Any]], out: Path) -> None:
    """Its eval_results.json of each level, and its files of baseline times."""
    for problem in problems:
        row = rows.get(problem.name)
        if row is None:
            continue
        known = {name: row[name] for name in KernelBenchResult.model_fields if row.get(name) is not None}
        result = KernelBenchResult(**known)
        add_to_results(out / "runs" / f"level{problem.level}" / "eval_results.json", problem.number, result)
        compiled = KernelBenchResult(ref_runtime_stats=row.get("compile_runtime_stats") or {})
        for name, baseline in (("torch", result), ("torch_compile_inductor_default", compiled)):
            path = out / "timing" / f"baseline_time_{name}.json"
            add_to_baseline(path, problem.level, problem.path.name, baseline)


def show(problems: list[Problem], rows: dict[str, dict[str, Any]], console: Console) -> None:
    """By level what is right and how much faster; then the wrong and the slower ones, each with its reason."""
    names = {problem.name: problem for problem in problems}
    rows = {name: row for name, row in rows.items() if name in names}
    modes = [(f"torch.compile's {mode}", f"{prefix}compile_runtime") for mode, prefix in PREFIX.items()]
    for title, over in (("eager torch", "ref_runtime"), *modes):
        if not any(row.get(over) for row in rows.values()):
            continue
        table = Table(title=f"KernelBench's own evaluation, beside {title}")
        for column in ("level", "judged", "right", "faster", "geometric mean", "fast_1", "fast_1.5", "fast_2"):
            table.add_column(column, justify="right")
        # torch.compile is timed on right drafts alone: the others are not among those that are counted beside it.
        judged = [
            solved(names[name], row, over) for name, row in rows.items() if over == "ref_runtime" or row.get(over)
        ]
        for level in sorted({problem.level for problem in problems}):
            here = [one for one in judged if one.level == level]
            shares = [f"{fast_p.fast_p(here, least, over):.0%}" for least in (1, 1.5, 2)]
            gains = fast_p.speedups(here, over)
            counts = [len(here), sum(one.correct for one in here), sum(gain > 1 for gain in gains)]
            table.add_row(str(level), *map(str, counts), f"{fast_p.geometric_mean(here, over) or 0:.2f}x", *shares)
        console.print(table)
    slower = [(gain, row) for row in rows.values() if (gain := speedup(row)) and gain <= 1]
    for row in sorted((row for row in rows.values() if not speedup(row)), key=lambda row: row["problem"]):
        console.print(f"wrong: {row['problem']}: {why_wrong(row)}", markup=False)
    for gain, row in sorted(slower, key=lambda pair: pair[0]):
        console.print(f"slower: {row['problem']}: {gain:.3f}x, {row['runtime']:g} ms for {row['ref_runtime']:g} ms")
    devices = {f"{row['device']}, torch {row['torch']}" for row in rows.values()}
    console.print(f"{len(rows)} of {len(problems)} judged; {'; '.join(devices)}")


if __name__ == "__main__":
    main()
