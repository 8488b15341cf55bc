"""Draws programs with lists of steps, judges them in batches, and makes what fails small.

A list is the rules' own first plan, less a few steps or none, or any steps in their order. Everything follows from the
seed. Hypothesis draws and shrinks; it draws nine programs at a time, as it varies what it has drawn before after that.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from nodes.policies.rules import first_steps
from nodes.rewrites import ordered
from tests.nodes.rewrites.fuzz import cpp_programs, cuda_programs
from tests.nodes.rewrites.fuzz.trial import DEVICES, Bench, Program, Verdict, applied, of_text

DRAWN = 10
"""Programs a round; the first one is always the same."""
PROGRAMS = {"cuda": cuda_programs.programs, "cpu": cpp_programs.programs}
LANGUAGE = {".cu": "cuda", ".cpp": "cpu"}
LISTS = 3
"""Lists of steps a program, at most."""
SHRINKING_S = 120


@dataclass(frozen=True)
class Case:
    program: Program
    steps: tuple[str, ...]

    def dumped(self, *said: str) -> str:
        """The program with what else there is to know in its first lines: a file of `found`."""
        program = self.program
        (timed,) = (w.axes for w in program.spec.workloads if w.timed)
        flags = [name for name in ("even", "aligned", "exact") if getattr(program, name)]
        head = [" ".join(self.steps), f"timed {timed['rows']} {timed['n']} {' '.join(flags)}".strip(), *said]
        return "".join(f"// {line}\n" for line in head) + program.text

    @staticmethod
    def loaded(path: Path) -> Case:
        """A file of `found`: the first line names the steps, the second one the timed size and what is special."""
        lines = path.read_text().splitlines()
        language = LANGUAGE[path.suffix]
        _, rows, n, *flags = lines[1].removeprefix("// ").split()
        text = "\n".join(itertools.dropwhile(lambda line: line.startswith("//"), lines)) + "\n"
        program = of_text(language, text, (int(rows), int(n)), frozenset(flags))
        return Case(program, tuple(lines[0].removeprefix("// ").split()))


@dataclass(frozen=True)
class Failure:
    case: Case
    verdict: Verdict
    seed: int

    @property
    def signature(self) -> tuple[str, tuple[str, ...]]:
        return self.verdict.kind, self.case.steps

    def keep(self, folder: Path, number: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        suffix = next(s for s, language in LANGUAGE.items() if language == self.case.program.language)
        stem = f"{number:03}_{self.verdict.kind.replace(' ', '_')}_{self.case.steps[-1].replace(':', '_')}"
        said = [f"{self.verdict.kind}, seed {self.seed}", *self.verdict.said.splitlines()[:6]]
        (folder / f"{stem}{suffix}").write_text(self.case.dumped(*said))
        (folder / f"{stem}.after").write_text(self.verdict.text)


@functools.cache
def every_form(language: str) -> tuple[str, ...]:
    """Every step with its variants, in the order of their application."""
    return tuple(form for rewrite in ordered(language) for form in rewrite.forms)


@st.composite
def cases(draw: st.DrawFn, language: str) -> list[Case]:
    """A program with lists of steps."""
    program = draw(PROGRAMS[language]())
    every = every_form(language)
    planned = first_steps(program.spec, DEVICES[language])
    less = st.sets(st.sampled_from(planned), max_size=3).map(lambda d: tuple(s for s in planned if s not in d))
    some = st.sets(st.sampled_from(every), min_size=1, max_size=16).map(lambda c: tuple(s for s in every if s in c))
    return [Case(program, steps) for steps in draw(st.lists(less | some, min_size=1, max_size=LISTS))]


def _drawing(number: int, language: str, test: Callable[[list[Case]], None], *phases: Phase) -> None:
    settled = settings(
        max_examples=DRAWN, phases=phases, database=None, deadline=None, verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck), print_blob=False, report_multiple_bugs=False,
    )  # fmt: skip
    seed(number)(settled(given(cases(language))(test)))()


def drawn(number: int, language: str) -> list[Case]:
    """The cases of one seed."""
    found: list[Case] = []
    _drawing(number, language, lambda some: found.extend(some), Phase.generate)
    return list({(case.program.text, case.steps): case for case in found}.values())


class _Still(Exception):
    """The case fails as before."""


def with_fewer_steps(bench: Bench, failure: Failure) -> Failure:
    """Drops the steps that the failure does not need: those that do not apply, then halves, and so on down to one."""
    program, kind, best = failure.case.program, failure.verdict.kind, failure

    def fails(steps: tuple[str, ...]) -> bool:
        nonlocal best
        verdict = judged(bench, Case(program, steps)) if steps else Verdict("right", program.text)
        if verdict.kind == kind:
            best = Failure(Case(program, steps), verdict, failure.seed)
        return verdict.kind == kind

    fails(applied(program, failure.case.steps))
    size = len(best.case.steps) // 2
    while size >= 1:
        at = 0
        while at < len(best.case.steps):
            if not fails(best.case.steps[:at] + best.case.steps[at + size :]):
                at += size
        size //= 2
    return best


def judged(bench: Bench, case: Case) -> Verdict:
    return bench.judge([(case.program, case.steps)])[0]


def shrunk(bench: Bench, failure: Failure, seconds: float = SHRINKING_S) -> Failure:
    """The smallest program that hypothesis comes to, with the same steps and the same kind of failure."""
    language, target, steps = failure.case.program.language, failure.case.program, failure.case.steps
    known: dict[str, bool] = {target.text: True}
    smallest, until = failure, time.monotonic() + seconds
    found = False

    def test(some: list[Case]) -> None:
        nonlocal smallest, found
        program = some[0].program
        found = found or program.text == target.text
        if found and program.text not in known:
            if time.monotonic() > until:
                return
            verdict = judged(bench, Case(program, steps))
            known[program.text] = verdict.kind == failure.verdict.kind
            if known[program.text] and len(program.text) <= len(smallest.case.program.text):
                smallest = Failure(Case(program, steps), verdict, failure.seed)
        if found and known[program.text]:
            raise _Still

    with contextlib.suppress(_Still):
        _drawing(failure.seed, language, test, Phase.generate, Phase.shrink)
    return smallest


@dataclass
class Search:
    """A run of the fuzzer; its counts grow as it goes."""

    language: str
    bench: Bench
    batch: int = 3
    """Seeds that are judged together."""
    kernels: int = 0
    rewritten: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)

    def rounds(self, first: int, ahead: bool = False) -> Iterator[list[Failure]]:
        """Judges a batch of seeds at a time, from `first` on, without end; yields what failed of them. With `ahead` the next batch
        is drawn and rewritten while the compiler has this one."""
        waiting: deque[tuple[list[tuple[int, Case]], Future[list[Verdict]]]] = deque()
        with ThreadPoolExecutor(max_workers=1) as compiling:
            for number in itertools.count(first, self.batch):
                with_seeds = [(n, case) for n in range(number, number + self.batch) for case in drawn(n, self.language)]
                judging = self.bench.rewritten([(case.program, case.steps) for _, case in with_seeds])
                waiting.append((with_seeds, compiling.submit(judging)))
                if len(waiting) > ahead:
                    cases, verdicts = waiting.popleft()
                    yield self._counted(cases, verdicts.result())

    def _counted(self, with_seeds: list[tuple[int, Case]], verdicts: list[Verdict]) -> list[Failure]:
        texts = {case.program.text for _, case in with_seeds}
        self.kernels += len(texts - self.seen)
        self.seen |= texts
        failures = []
        for (n, case), verdict in zip(with_seeds, verdicts, strict=True):
            if verdict.text in self.seen and not verdict.failed:
                continue  # unchanged, or judged before
            self.seen.add(verdict.text)
            self.rewritten += 1
            self.counts[verdict.kind] += 1
            if verdict.failed:
                failures.append(Failure(case, verdict, n))
        return failures
