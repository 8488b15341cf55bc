"""Do the tests notice? A sample of the mistakes that mutmut makes, each in a copy of this checkout, beside the tests of its file.

    python -m benchmarks.mutants [harness/store.py ...] [--sample 20] [--seed 0] [--seconds 60] [--out DIR] [--list]

mutmut makes the mistakes ([tool.mutmut] of pyproject.toml says which it leaves out) and this draws from them, the same ones for
the same seed and source. mutmut's own run chooses the mistake by a variable of the environment, which no worker sees
here, for the sandbox gives it none of ours; so each mistake is written into the copy's file. A fork of a process that
has imported torch and nothing of ours runs those tests that reach the function in the test's own process, then the others
of the file; the quickest first, up to the first failure, as many as take --seconds together without the mistake. An endless
loop counts as noticed. What survived is in DIR/survivors.diff.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import difflib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TESTS = {
    "harness/timing/comparison.py": ("harness/test_comparison.py", "harness/test_timing.py"),
    "harness/checks/judging.py": (
        "harness/test_correctness.py", "harness/test_bounded_values.py", "harness/test_properties.py", "harness/test_timing.py",
    ),
    "harness/checks/noise.py": (
        "harness/test_correctness.py", "harness/test_bounded_values.py", "harness/test_properties.py", "harness/test_timing.py",
    ),
    "harness/timing/sampling.py": ("harness/test_timing.py", "harness/test_company.py"),
    "harness/timing/interleaved.py": ("harness/test_timing.py",),
    "harness/store.py": ("harness/test_store.py",),
    "harness/judge/bands.py": ("harness/test_bands.py",),
    "harness/timing/neighbours.py": ("harness/test_company.py", "harness/test_timing.py"),
    "harness/timing/mixtures.py": ("harness/test_company.py", "harness/test_timing.py"),
    "harness/judge/search.py": ("harness/test_bands.py", "harness/test_evaluate.py"),
    "harness/judge/comparisons.py": ("harness/test_contests.py", "harness/test_evaluate.py"),
    "harness/judge/series.py": ("harness/test_contests.py", "harness/test_evaluate.py"),
    "harness/checks/crossings.py": ("harness/test_crossings.py",),
    "harness/judge/many_calls.py": ("harness/test_module_state.py", "harness/test_evaluate.py", "cheats/test_cheats.py"),
    "harness/judge/verification.py": (
        "harness/test_kept_answers.py", "harness/test_evaluate.py", "harness/test_properties.py", "harness/test_lists_and_zeros.py",
        "harness/test_problems.py",
    ),
    "harness/judge/session.py": ("harness/test_kept_answers.py", "harness/test_evaluate.py", "harness/test_fitting.py"),
    "harness/evaluate.py": (
        "harness/test_kept_answers.py", "harness/test_contests.py", "harness/test_evaluate.py", "harness/test_engines.py",
    ),
    "harness/judge/pool.py": ("harness/test_pool.py",),
    "harness/farside/sandbox.py": ("harness/test_sandbox.py",),
    "graph/session.py": (
        "graph/test_session.py", "graph/test_loop.py", "graph/test_unfinished.py", "graph/test_runs_listed.py", "graph/test_asking.py",
    ),
    "graph/routes.py": ("graph/test_routes.py",),
    "graph/workflow.py": ("graph/test_routes.py", "graph/test_draw.py", "graph/test_loop.py"),
    "nodes/compile.py": ("nodes/test_gates.py",),
    "nodes/verify.py": ("nodes/test_gates.py",),
    "nodes/measure.py": ("nodes/test_gates.py",),
    "nodes/select.py": ("nodes/test_gates.py",),
    "nodes/contest.py": ("nodes/test_gates.py", "graph/test_loop.py", "graph/test_memory.py"),
    "nodes/held_out.py": ("nodes/test_held_out.py", "nodes/test_memory.py", "graph/test_loop.py"),
    "nodes/tune.py": ("nodes/test_gates.py",),
    "nodes/stops.py": ("nodes/test_gates.py",),
    "nodes/policies/rules.py": ("nodes/policies/test_rules.py", "nodes/policies/test_rules_memory.py"),
    "nodes/policies/search.py": ("nodes/policies/test_rules.py", "nodes/policies/test_rules_memory.py"),
    "nodes/policies/replies.py": ("nodes/policies/test_answers.py",),
    "nodes/policies/answers.py": ("nodes/policies/test_answers.py", "nodes/policies/test_chat.py"),
}  # fmt: skip
"""By file, the tests under tests/ that are to notice what is wrong in it."""
ALIKE: dict[str, dict[str, str]] = {
    "harness/timing/sampling.py": {
        "most = max(1, SCANNED_BYTES // max(per_call, 2))": "of a call that writes one byte half as many are searched",
    },
    "harness/timing/interleaved.py": {"rng = random.Random(None)": "drawn by the machine as well"},
    "harness/timing/mixtures.py": {
        "mask = (2 << (_MANTISSA[name] + 1) // 2) - 1": "how many low bits change is a choice; that all stay in range is tested",
    },
    "harness/store.py": {"Path(name).unlink(missing_ok=False)": "what was made a line above is there"},
    "harness/judge/search.py": {
        "if len(cases) < most:": "as many cases as may be are spread to themselves",
        "sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=12, multivariate=False, constant_liar=True)": (
            "how a sampler models what it was told is a choice"
        ),
        'warnings.simplefilter("ignore", None)': "pytest has filters of its own; what it keeps quiet is a remark of optuna's",
    },
    "harness/farside/sandbox.py": {
        "(_LOAD, 0, 1, 0),": "a load has nowhere to jump to",
        "(_LOAD, 1, 0, 4),": "a load has nowhere to jump to",
        'layers += ["signals"] if abi > 6 else []': "a kernel's that is not this machine's",
        '_fields_ = (("LENGTH", ctypes.c_ushort), ("filter", ctypes.c_void_p))': "the field is filled by its place",
        'active += ["not dumpable"] if _prctl(4, ) == 0 else []': "0 is what is left out",
    },
    "nodes/policies/rules.py": {
        "if not timing.light_fraction and not timing.light_us:": "a share of light has its light",
        "ranked = sorted((t for t in timings if t.light_fraction), key=lambda t: t.light_fraction or 1.0)": (
            "whatever has none is left out in the same line"
        ),
        '"UNKNOWN": "nothing measured says what bounds it",': "whoever has no speed of light was answered before",
        'f"{row} longer than any other": {**others, row: 2 * max(w.axes[row] for w in suite) - 8},': "as long, and as odd",
    },
}
"""By file: mistakes, by the line that they leave, that are none, or none that anybody could be hurt by, and why."""
PRELOADED = ("torch", "numpy", "pydantic", "pytest", "hypothesis", "optuna", "langgraph.graph", "langchain_openai")
"""Imported once, before the first fork: other people's, so no mistake of ours is in them."""

STRICT = re.compile(r",? ?strict=\w+")
BROKEN = 99
"""Exit status of a fork in which this file failed, rather than a test."""
BASELINE_S = 1800
NO_TESTS = 5
"""pytest's."""


class Mistake:
    """One mutant: the file's text with it, the line where it begins and the outermost function or method around it."""

    def __init__(self, path: str, number: int, source: str, text: str) -> None:
        self.name, self.path, self.text = f"{path}#{number}", path, text
        pairs = zip(source.splitlines(), text.splitlines(), strict=False)
        self.line = next((i for i, (old, new) in enumerate(pairs, 1) if old != new), len(source.splitlines()))
        difference = difflib.unified_diff(source.splitlines(), text.splitlines(), path, self.name, n=2, lineterm="")
        self.difference = "\n".join(difference)
        self.new = " ".join(self.text.splitlines()[self.line - 1].split())
        self.old = " ".join([*source.splitlines(), ""][self.line - 1].split())
        """The first line that is another one, and what stood there."""

    def why_left_out(self, alike: dict[str, str]) -> str:
        """Why nobody could notice it, or should; "" for a mistake that counts."""
        if STRICT.sub("", self.old) == STRICT.sub("", self.new):
            return "`strict=True` says what holds anyway"
        return alike.get(self.new, "")


def mistakes(path: str, source: str, choose: Callable[[list[int]], list[int]]) -> tuple[int, list[Mistake]]:
    """How many mutmut makes in functions of a file, less those in prose (strings with a space in them), and those of
    them that `choose` names by their numbers."""
    import libcst
    from mutmut.mutation.file_mutation import create_mutations, deep_replace

    module, mutations, _, _ = create_mutations(path, source)

    def counts(mutation: Any) -> bool:
        node = mutation.original_node
        prose = isinstance(node, libcst.SimpleString) and " " in node.value
        return isinstance(mutation.contained_by_top_level_function, libcst.FunctionDef) and not prose

    made = [mutation for mutation in mutations if counts(mutation)]
    found = []
    for number in choose(list(range(len(made)))):
        text = deep_replace(module, made[number].original_node, made[number].mutated_node).code
        found.append(Mistake(path, number, source, text))
    return len(made), found


def functions(source: str) -> list[tuple[int, int]]:
    """(first line with its decorators, last line) of each function of the module and each method of its classes."""
    spans = []
    for node in ast.parse(source).body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                spans.append((min([inner.lineno, *(d.lineno for d in inner.decorator_list)]), inner.end_lineno or 0))
    return spans


class Reached:
    """A plugin for pytest: which functions of some files each test enters in its own process, and how long it takes."""

    def __init__(self, files: set[str]) -> None:
        self.files, self.lines, self.seconds = files, {}, {}
        self.now: set[tuple[str, int]] = set()

    def trace(self, frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_filename in self.files:
            self.now.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def pytest_runtest_protocol(self, item: Any) -> None:
        sys.settrace(self.trace)
        threading.settrace(self.trace)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        self.lines.setdefault(report.nodeid, set()).update(self.now)
        self.now.clear()
        if report.failed:
            self.seconds[report.nodeid] = -1.0


class Only:
    """A plugin for pytest: these tests and no others, in this order."""

    def __init__(self, names: list[str]) -> None:
        self.order = {name: i for i, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda item: self.order[item.nodeid])


def copy_of_checkout(to: Path) -> None:
    """What git has or would add, as it is now, compiled: no fork has to do that again."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], stdout=subprocess.PIPE, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if Path(name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, to / name)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "harness", "graph", "nodes", "kernels"], cwd=to, check=False
    )


def in_a_fork(root: Path, log: Path, seconds: float, work: Callable[[], int]) -> int | None:
    """What `work` returns in a fork whose directory is the copy; None where it took too long. Nothing it started is left."""
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1), os.dup2(out, 2)
            os.chdir(root)
            sys.path[:] = [str(root), *(p for p in sys.path if p and not _ours(p))]
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "2"  # tests/conftest.py takes "1" back
            code = work()
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001  a fork ends here, whatever happened, and its log says what
            traceback.print_exc()
            code = BROKEN
        os._exit(code)
    end, status = time.monotonic() + seconds, None
    try:
        while status is None and time.monotonic() < end:
            done, raw = os.waitpid(-1, os.WNOHANG)  # orphans too: tests wait for them to be gone
            if done == pid:
                status = os.waitstatus_to_exitcode(raw)
            elif not done:
                time.sleep(0.05)
    finally:
        _end_all()
    return status


def _ours(path: str) -> bool:
    return Path(path).resolve() == Path(__file__).resolve().parent.parent


def _children() -> Iterator[int]:
    me = os.getpid()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == me:
                yield int(stat.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue


def _end_all() -> None:
    """Kills what a fork has left: orphans become children of this process, which is their reaper, so a few passes find all."""
    for _ in range(100):
        left = list(_children())
        if not left:
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def pytest_in(
    root: Path, log: Path, files: tuple[str, ...], plugin: Any, seconds: float, also: tuple[str, ...] = ()
) -> Any:
    def work() -> int:
        import pytest

        arguments = [
            *(f"tests/{name}" for name in files),
            "-n",
            "0",
            "-q",
            "-p",
            "no:cacheprovider",
            "--hypothesis-seed=0",
            *also,
        ]
        code = int(pytest.main(arguments, plugins=[plugin]))
        if isinstance(plugin, Reached):
            said = {"lines": {k: sorted(v) for k, v in plugin.lines.items()}, "seconds": plugin.seconds}
            log.with_suffix(".json").write_text(json.dumps(said))
        return code

    return in_a_fork(root, log, seconds, work)


class Suite:
    """The tests of one file: which reach which of its functions, and how long each takes."""

    def __init__(self, path: str, root: Path, out: Path, seconds: float) -> None:
        """Runs them all once without a mistake, and the quickest as each mistake's are run. Ends the program where these fail."""
        self.path, self.root, self.out, self.limit = path, root, out, seconds
        self.target = root / path
        self.source = self.target.read_text()
        self.spans = functions(self.source)
        log = out / (path.replace("/", ".") + ".log")
        said = log.with_suffix(".json")
        said.unlink(missing_ok=True)
        pytest_in(root, log, TESTS[path], Reached({str(self.target)}), BASELINE_S)
        if not said.exists():
            raise SystemExit(f"{path}: its tests did not end without a mistake; see {log}")
        found = json.loads(said.read_text())
        self.lines, self.seconds = found["lines"], found["seconds"]
        for name in (name for name, took in self.seconds.items() if took < 0):
            print(f"{path}: {name} fails without a mistake and is left out", flush=True)
        if (code := self.run(self.quickest(), "control.log")) != 0:
            raise SystemExit(f"{path}: its tests fail without a mistake (exit {code}); see {out / 'control.log'}")

    def passed(self) -> set[str]:
        return {name for name, took in self.seconds.items() if took >= 0}

    def reaching(self, line: int) -> set[str]:
        """The tests that enter the function around that line, in their own process."""
        first, last = next(span for span in self.spans if span[0] <= line <= span[1])
        return {
            n for n in self.passed() if any(f == str(self.target) and first <= at <= last for f, at in self.lines[n])
        }

    def quickest(self, first: set[str] | frozenset[str] = frozenset()) -> list[str]:
        """As many tests as take `limit` seconds together, and one at least; `first` those that are known to reach it.

        The others may reach it too, in another process: what a sandbox is made of no test enters in its own.
        """
        tests, total = [], 0.0
        for name in sorted(self.passed(), key=lambda name: (name not in first, self.seconds[name], name)):
            total += self.seconds[name]
            if tests and total > self.limit:
                break
            tests.append(name)
        return tests

    def run(self, tests: list[str], log: str) -> int | None:
        """pytest's exit status, up to the first that fails; None where it took longer than it may."""
        files = tuple(dict.fromkeys(name.partition("::")[0].removeprefix("tests/") for name in tests))
        code = pytest_in(self.root, self.out / log, files, Only(tests), 4 * self.limit + 60, ("-x",))
        if code in (BROKEN, NO_TESTS):
            raise SystemExit(f"{self.path}: nothing was tried (exit {code}); see {self.out / log}")
        return code

    def notices(self, mistake: Mistake) -> bool:
        reach = self.reaching(mistake.line)
        tests = self.quickest(reach)
        for stale in self.target.parent.glob(f"__pycache__/{self.target.stem}.*"):
            stale.unlink()
        self.target.write_text(mistake.text)
        began = time.monotonic()
        try:
            code = self.run(tests, "last.log")
        finally:
            self.target.write_text(self.source)
        log = (self.out / "last.log").read_text().splitlines()
        failed = next((line.split()[1] for line in log if line.startswith(("FAILED ", "ERROR "))), "")
        words = {0: "SURVIVED", 1: "noticed", None: "noticed (no end)"}.get(code, f"noticed (exit {code})")
        known = len(reach.intersection(tests))
        whose = f"{known} of {len(reach)} tests that reach it, {len(tests) - known} others"
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{mistake.name} line {mistake.line}: {words} ({whose}, {took}) {failed}", flush=True)
        if code == 0:
            with (self.out / "survivors.diff").open("a") as file:
                file.write(f"# {mistake.name}, {whose}\n{mistake.difference}\n\n")
        return code != 0


def try_file(path: str, root: Path, out: Path, arguments: argparse.Namespace) -> tuple[int, int]:
    """(tried, noticed) of one file's mistakes."""

    def choose(numbers: list[int]) -> list[int]:
        if arguments.only:
            return [number for number in numbers if f"{path}#{number}" in arguments.only]
        return random.Random(f"{arguments.seed} {path}").sample(numbers, min(arguments.sample, len(numbers)))

    every, sample = mistakes(path, (root / path).read_text(), choose)
    if arguments.list:
        print("\n".join(f"{mistake.name}\n{mistake.difference}" for mistake in sample))
        return 0, 0
    alike = {mistake.name: why for mistake in sample if (why := mistake.why_left_out(ALIKE.get(path, {})))}
    for name, why in alike.items():
        print(f"{name}: left out, {why}", flush=True)
    suite = Suite(path, root, out, arguments.seconds)
    noticed = [suite.notices(mistake) for mistake in sample if mistake.name not in alike]
    share = f"{100 * sum(noticed) / len(noticed):.0f} %" if noticed else "none made"
    print(f"{path}: {every} made, {len(noticed)} tried, {sum(noticed)} noticed ({share})", flush=True)
    return len(noticed), sum(noticed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(TESTS)}; all by default")
    parser.add_argument("--sample", type=int, default=20, metavar="N", help="mistakes of each file (20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for one mistake at most (60)")
    parser.add_argument("--only", nargs="+", metavar="FILE#N", help="these mistakes, by the names that a run printed")
    parser.add_argument("--out", type=Path, default=Path("runs/mutants"))
    parser.add_argument("--list", action="store_true", help="print the sample and run nothing")
    arguments = parser.parse_args()
    files = arguments.files or list(dict.fromkeys(n.partition("#")[0] for n in arguments.only or ())) or list(TESTS)
    if unknown := [name for name in files if name not in TESTS]:
        parser.error(f"no tests are listed for {', '.join(unknown)}; the files are {', '.join(TESTS)}")
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that nothing of it stays
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what a test leaves behind is ours to end
    for name in PRELOADED:
        __import__(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy_of_checkout(Path(folder))
        counted = [try_file(path, Path(folder), out, arguments) for path in files]
    tried, noticed = (sum(column) for column in zip(*counted, strict=True))
    if tried:
        print(f"all: {tried} tried, {noticed} noticed, {100 * noticed / tried:.1f} %")


if __name__ == "__main__":
    main()
