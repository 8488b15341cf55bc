"""Is a cheat ever called FASTER, or an honest candidate refused? Every candidate of tests/cheats, several times.

    python -m benchmarks.cheats [--device cpu|cuda] [--repeats 5] [--only NAME ...]

Chance says FASTER now and then; a cheat that works says it again. Prints a row for each candidate, and exits with 1 if a
cheat was FASTER or ended otherwise than its header says, or an honest candidate did not pass.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from harness.evaluate import Evaluator
from harness.records import Comparison, Outcome, Verdict
from harness.store import Store
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Device

FOLDER = Path(__file__).parent.parent / "tests" / "cheats"
NO_CANDIDATES = ("test_cheats", "honest")
SUFFIXES: dict[Device, tuple[str, ...]] = {"cpu": (".cpp", ".py"), "cuda": (".cu",)}
SHARED = {name: (FOLDER / name).read_text() for name in ("honest.h", "honest.cuh", "honest.py", "interpreter.h")}
DTYPES: dict[tuple[str, str], tuple[str, ...]] = {
    (".cpp", "silu_and_mul"): ("float32", "float16", "bfloat16"),
    (".cu", "silu_and_mul"): ("float16", "bfloat16", "float32"),
}
"""By suffix and kernel; float32 alone where it is not named: numpy has no bfloat16, and what is attacked does not differ."""


BUILT_ON = ("silu_and_mul", "fused_add_rmsnorm")
"""Kernels of which there is an honest form here."""


def names(suffix: str) -> list[str]:
    return sorted(path.stem for path in FOLDER.glob(f"*{suffix}") if path.stem not in NO_CANDIDATES)


def source(name: str, suffix: str) -> str:
    """The candidate as one file: what it includes from here is put in its place."""
    text = (FOLDER / f"{name}{suffix}").read_text()
    for shared, content in SHARED.items():
        text = text.replace(f'#include "{shared}"', content)
    return re.sub(r"^from honest import .*$", lambda _: SHARED["honest.py"], text, flags=re.MULTILINE)


def must_end_in(text: str, *, held_out: bool = False) -> set[Outcome]:
    phrase = "Held out, it must end in" if held_out else "Must end in"
    found = re.search(rf"^(?://|#) {phrase}: (.+)$", text, re.MULTILINE)
    return {Outcome(name.strip()) for name in found[1].split(",")} if found else set()


def kernel_of(text: str) -> str:
    found = re.search(r"^(?://|#) Kernel: ([\w/]+)$", text, re.MULTILINE)
    return found[1] if found else "silu_and_mul"


def small(kernel: Kernel, device: str, dtypes: tuple[str, ...]) -> Kernel:
    """The kernel with its smallest timed workload and those that are only checked, the held-out ones included."""
    spec = kernel.spec
    mine = [w for w in spec.workloads if device in w.devices and w.dtype in dtypes]
    timed = min((w for w in mine if w.timed and not w.held_out), key=lambda w: spec.read_bytes(w) + spec.write_bytes(w))
    kept = (timed, *(w for w in mine if not w.timed or w.held_out))
    return replace(kernel, spec=spec.model_copy(update={"workloads": kept}))


def evaluator(folder: Path, suffix: str, kernel: str = "silu_and_mul", but: tuple[str, ...] = ()) -> Evaluator:
    """For candidates of that kind, without the dtypes of `but`."""
    device: Device = "cuda" if suffix == ".cu" else "cpu"
    known = catalog.load(kernel).spec.dtypes
    dtypes = DTYPES.get((suffix, kernel), ("float32",) if "float32" in known else known)
    dtypes = tuple(dtype for dtype in dtypes if dtype not in but)
    return Evaluator(small(catalog.load(kernel), device, dtypes), device, Store(folder), dtypes=dtypes)


def baseline_source(suffix: str, kernel: str = "silu_and_mul") -> str:
    """What the cheats are built on, by itself: the catalog's baseline may differ from it by the 3 % that say FASTER."""
    if kernel == "fused_add_rmsnorm":
        return source("honest_in_place", suffix).replace("honest form", "baseline")
    if suffix == ".py":
        return source("honest_function", ".py")
    return {".cpp": SHARED["honest.h"], ".cu": SHARED["honest.cuh"]}[suffix] + "ENTRY_POINTS(compute)\n"


def judge(evaluator: Evaluator, text: str, suffix: str) -> Verdict:
    """The verdict on the visible suite, measured where it passed, against the honest form of the same kernel."""
    name = evaluator.kernel.spec.name
    built_on = (
        baseline_source(suffix, name)
        if name in BUILT_ON
        else evaluator.kernel.baseline(evaluator.device)[1].read_text()
    )
    baseline = evaluator.store.put(built_on)
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
    return evaluator.measure(verdict, baseline=baseline) if verdict.passed else verdict


def seems_faster(verdict: Verdict) -> bool:
    return verdict.suite is not None and verdict.suite.comparison is Comparison.FASTER


def again(text: str, suffix: str, number: int = 1) -> str:
    """Another source to the store, and the same to a compiler."""
    return f"{text}\n{'#' if suffix == '.py' else '//'} measured again, {number}\n"


def fault(name: str, verdict: Verdict, allowed: set[Outcome]) -> str:
    """What is wrong with the verdict on that candidate, or ""."""
    if verdict.outcome not in allowed:
        return f"{verdict.outcome}: {verdict.reason}"
    if seems_faster(verdict) and not name.startswith("honest_"):
        assert verdict.suite is not None
        return f"FASTER, {verdict.suite.speedup.median:.3f}x"
    return ""


def _said(verdict: Verdict) -> str:
    if verdict.suite is None:
        return f"{verdict.outcome}: {verdict.reason[:150]}"
    return f"{verdict.outcome} {verdict.suite.comparison} {verdict.suite.speedup.median:.3f}x"


def run(device: Device, repeats: int, only: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """(candidate, what each repeat said, what is wrong) one after another."""
    with ExitStack() as stack:
        evaluators: dict[tuple[str, str], Evaluator] = {}
        for suffix in SUFFIXES[device]:
            for name in names(suffix):
                if only and name not in only:
                    continue
                text = source(name, suffix)
                key = (suffix, kernel_of(text))
                if key not in evaluators:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                    evaluators[key] = stack.enter_context(evaluator(folder, *key))
                verdicts = [judge(evaluators[key], again(text, suffix, number), suffix) for number in range(repeats)]
                faults = [found for v in verdicts if (found := fault(name, v, must_end_in(text)))]
                yield f"{name}{suffix}", [_said(v) for v in verdicts], faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="names of candidates, without suffix")
    given = parser.parse_args()
    wrong = 0
    for name, said, faults in run(given.device, given.repeats, given.only):
        wrong += bool(faults)
        print(f"{'WRONG' if faults else 'ok':5} {name:38} {' | '.join(dict.fromkeys(said))}", flush=True)
        for text in faults:
            print(f"      {text}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
