"""How often is an honest candidate accused? Honest ones that look as if they were not, in turn, until the time is up.

    python -m benchmarks.false_accusations [--seconds 300] [--only numbers|verdicts|baselines ...] [--name PART]

numbers: modules by KernelBench's protocol, which holds clocks against ours. verdicts: the honest candidates of tests/cheats, as they
are and measured. baselines: every baseline of the catalog for a CPU, verified. Prints each accusation and a rate for each group; exits with 1
where there was one. Run it beside other work, too: a busy machine is where clocks are doubted.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks import cheats
from harness import protocol_kernelbench
from harness.evaluate import Evaluator
from harness.problems.pytorch import Problem, open_problem
from harness.store import Store
from kernels import catalog

HEAD = "import concurrent.futures, gc, threading, time\nimport torch\nfrom torch import nn\n\n\n"
PROBLEMS = {
    "scale": ("return x * torch.sigmoid(x) + self.weight", "torch.rand(64, 256)"),
    "chain": ("y = x\n        for _ in range(6):\n            y = torch.tanh(y @ self.weight)\n        return y", "torch.rand(128, 256)"),
    "large": ("return torch.relu(x) + self.weight", "torch.rand(8192, 256)"),
}  # fmt: skip
"""What forward does, and what get_inputs() draws, by the problem's name. Its weight is [256, 256], or a row of it."""
WAYS = {
    "itself": ("", "{forward}"),
    "kept workspace": (
        "self.kept = {}",
        "out = self.kept.setdefault(x.shape, torch.empty(x.shape[0], 256))\n        out.copy_(self.answer(x))\n        return out",
    ),
    "workspace of 64 MB": ("self.room = torch.zeros(16 << 20)", "self.room.add_(1)\n        return self.answer(x)"),
    "lazy table": (
        "self.table = None",
        "if self.table is None:\n            self.table = torch.randn(1024, 1024).cumsum(0).sum() * 0\n"
        "        return self.answer(x) + self.table",
    ),
    "tuned at the first call": (
        "self.best = {}",
        "if x.shape not in self.best:\n            took = []\n            for way in (self.answer, lambda x: self.answer(x.clone())):\n"
        "                for _ in range(20):\n                    began = time.perf_counter()\n                    way(x)\n"
        "                took.append((time.perf_counter() - began, way))\n            self.best[x.shape] = min(took, key=lambda one: one[0])[1]\n"
        "        return self.best[x.shape](x)",
    ),
    "pool of threads": (
        "self.pool = concurrent.futures.ThreadPoolExecutor(2)",
        "return torch.cat(list(self.pool.map(self.answer, x.chunk(2))))",
    ),
    "a thread a call": (
        "pass",
        "found = []\n        one = threading.Thread(target=lambda: found.append(self.answer(x)))\n        one.start()\n"
        "        one.join()\n        return found[0]",
    ),
    "garbage in cycles": (
        "pass",
        "one = [torch.empty(1 << 20)]\n        one.append(one)\n        return self.answer(x)",
    ),
    "one thread": ("torch.set_num_threads(1)", "return self.answer(x)"),
    "threads within the call": (
        "pass",
        "before = torch.get_num_threads()\n        torch.set_num_threads(1)\n        y = self.answer(x)\n"
        "        torch.set_num_threads(before)\n        return y",
    ),
    "collects": ("pass", "y = self.answer(x)\n        gc.collect()\n        return y"),
}
"""Honest ways: what the constructor does beside making the weight, and forward, by name. `self.answer` is Model's forward."""


def model(problem: str) -> str:
    forward, drawn = PROBLEMS[problem]
    return f"{_module('Model', '', forward, '')}\n\ndef get_inputs():\n    return [{drawn}]\n"


def _module(name: str, init: str, forward: str, answer: str) -> str:
    own = f"\n    def answer(self, x):\n        {answer}\n" if answer else ""
    weight = "torch.randn(256, 256) / 16 if WIDE else torch.randn(256)".replace("WIDE", str("@" in (answer or forward)))
    return (
        f"{HEAD}class {name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.weight = nn.Parameter({weight})\n"
        f"        {init or 'pass'}\n{own}\n    def forward(self, x):\n        {forward}\n"
    )


def candidate(problem: str, way: str) -> str:
    init, forward = WAYS[way]
    text = PROBLEMS[problem][0]
    return _module("ModelNew", init, forward.replace("{forward}", text), text)


Look = Callable[[], str]
"""Judges once; says what was wrong, or ""."""


def numbers(stack: ExitStack) -> Iterator[tuple[str, Look]]:
    """Every way of every problem by KernelBench's protocol, with its 100 timed calls."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    (folder / "level1").mkdir()
    for number, problem in enumerate(PROBLEMS):
        path = folder / "level1" / f"{number}_{problem}.py"
        path.write_text(model(problem))
        opened = stack.enter_context(closing(open_problem(path, "cpu")))
        one = stack.enter_context(Evaluator(opened, "cpu", Store(folder / f"store{number}")))
        for way in WAYS:

            def look(one: Evaluator = one, opened: Problem = opened, text: str = candidate(problem, way)) -> str:
                found = protocol_kernelbench.evaluate(one, opened, text)
                return "" if found.correctness else str(found.metadata)[:400]

            yield f"{problem}, {way}", look


def verdicts(stack: ExitStack) -> Iterator[tuple[str, Look]]:
    """The honest candidates of tests/cheats, verified and measured."""
    evaluators: dict[tuple[str, str], Evaluator] = {}
    for suffix in cheats.SUFFIXES["cpu"]:
        for name in cheats.names(suffix):
            if not name.startswith("honest_"):
                continue
            text, counter = cheats.source(name, suffix), itertools.count()
            key = (suffix, cheats.kernel_of(text))

            def look(text: str = text, key: tuple[str, str] = key, counter: Iterator[int] = counter) -> str:
                if key not in evaluators:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                    evaluators[key] = stack.enter_context(cheats.evaluator(folder, *key))
                found = cheats.judge(evaluators[key], cheats.again(text, key[0], next(counter)), key[0])
                return "" if found.passed else f"{found.outcome}: {found.reason}"

            yield f"{name}{suffix}", look


def baselines(stack: ExitStack) -> Iterator[tuple[str, Look]]:
    """Every baseline for a CPU, verified as a candidate."""
    for name in catalog.names():
        for which, path in catalog.load(name).baselines("cpu").items():
            text, counter = path.read_text(), itertools.count()

            def look(name: str = name, text: str = text, counter: Iterator[int] = counter) -> str:
                with (
                    tempfile.TemporaryDirectory() as folder,
                    Evaluator(catalog.load(name), "cpu", Store(Path(folder))) as one,
                ):
                    found = one.verify(one.build(one.store.put(cheats.again(text, ".cpp", next(counter)))))
                return "" if found.passed else f"{found.outcome}: {found.reason}"

            yield f"{name}, {which}", look


GROUPS = {"numbers": numbers, "verdicts": verdicts, "baselines": baselines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="for each group (300)")
    parser.add_argument("--only", nargs="*", default=[], choices=GROUPS, help="groups")
    parser.add_argument("--name", default="", help="only candidates with this in their name")
    given = parser.parse_args()
    wrong = 0
    for group in given.only or GROUPS:
        with ExitStack() as stack:
            looks = [(name, look) for name, look in GROUPS[group](stack) if given.name in name]
            late, made, accused = time.monotonic() + given.seconds, 0, 0
            for name, look in itertools.cycle(looks):
                if time.monotonic() > late or (group == "baselines" and made == len(looks)):
                    break
                said = look()
                made += 1
                accused += bool(said)
                if said:
                    print(f"      {name}: {said}", flush=True)
            wrong += accused
            print(f"{group}: {accused} of {made} accused, of {len(looks)} candidates", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
