"""The tools themselves, over one Evaluator. Everything a candidate does happens in the harness's box, as at the gates."""

from __future__ import annotations

import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from harness.evaluate import Evaluator
from harness.judge.quick import Case, Quick
from harness.judge.search import find_open_tunables
from harness.judge.tunables import tunables
from harness.probes.sass import ToolFailed
from harness.records import Cache, Outcome, Verdict
from harness.store import Store
from harness.tools.listing import functions
from kernels.spec import Spec, Workload, expression
from nodes import compiling, ledger
from nodes.knowledge import every, families_of, page
from nodes.policies.render import SHORT, data, difference, knowledge
from nodes.policies.replies import UnfitReply, apply_edits
from nodes.roles import Attempt
from nodes.workbench import shown
from nodes.workbench.arguments import (
    Arguments,
    CheckArguments,
    CompileArguments,
    ProfileArguments,
    ReadArguments,
    ScheduleArguments,
    SubmitArguments,
    TimeArguments,
    TryScheduleArguments,
    read_workload,
)
from nodes.workbench.results import ToolRefused, ToolResult
from nodes.workbench.variants import MINE, describe_each, fastest, lead, make_variant, whole

SECONDS_OF_VARIANTS, SECONDS_A_VARIANT = 15.0, 4.0
"""Of timing several forms of a source, and for each of them: such as are alike would be timed until their seconds are over, since nothing
decides between them."""
MOST_BYTES = 256 << 20
"""Tensors of a workload that a model chose, as those of a tester's."""


class Workbench:
    """Tools on the visible suite of one evaluator.

    `spec` is the one that agents may see. `incumbent` and `baseline` are hashes, `attempts` those of the run so far. Safe
    for several threads: compilers run side by side, whatever needs the device takes turns. Raises MissingTool where a
    compiler is gone, and RuntimeError where the baseline fails.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        store: Store,
        spec: Spec,
        *,
        baseline: str,
        incumbent: str,
        attempts: Sequence[Attempt] = (),
        reference: str = "",
        exact: bool = False,
    ) -> None:
        self.evaluator, self.store, self.spec = evaluator, store, spec
        self.baseline, self.incumbent, self.attempts = baseline, incumbent, tuple(attempts)
        self.reference = reference
        """Text of the kernel's reference.py, which the compiler starts from; "" where there is none."""
        self.exact = exact
        self._lock, self._call = threading.Lock(), threading.local()

    @property
    @contextmanager
    def _device(self) -> Iterator[None]:
        """One draft at a time; what the others' tools take is not charged to who waits for them."""
        began = time.monotonic()
        with self._lock:
            self._call.waited_s = getattr(self._call, "waited_s", 0.0) + time.monotonic() - began
            yield

    def do(self, arguments: Arguments, last: str, left_s: float = math.inf) -> ToolResult:
        """`last` is the source that an empty name means, or ""; `left_s`, seconds that tools may still take. What is asked wrongly is said in
        the text."""
        began, self._call.waited_s, self._call.left_s = time.monotonic(), 0.0, left_s
        name, tool = _TOOLS[type(arguments)]
        try:
            found = tool(self, arguments, last)
        except ToolRefused as refused:
            found = ToolResult(text=f"{name}: {refused}")
        return found.model_copy(
            update={"tool": name, "seconds": max(0.0, time.monotonic() - began - self._call.waited_s)}
        )

    def has_compiler(self) -> bool:
        """Whether Astrolabe's compiler writes a source for this operation; worked out once in a process, in some seconds."""
        return bool(self.reference and self._compilation.source()[0])

    @property
    def _compilation(self) -> compiling.Compilation:
        facts = self.evaluator.facts
        return compiling.Compilation(spec=self.spec, reference=self.reference, device=facts, exact=self.exact)

    # --- names ---------------------------------------------------------------------------------------------------

    def source(self, name: str, last: str) -> str:
        """The hash of a source by the name that a model gives it. Raises ToolRefused."""
        name = name.strip().strip("[]").lower()
        if not name:
            if not last:
                raise ToolRefused("nothing was compiled yet: give a name")
            return last
        if name in ("baseline", "incumbent", "best"):
            return self.baseline if name == "baseline" else self.incumbent
        found = self.store.find_sources(name)
        if len(found) != 1:
            raise ToolRefused("no source has that name" if not found else "several sources begin so: give more digits")
        return found[0]

    # --- the tools -----------------------------------------------------------------------------------------------

    def compile(self, asked: CompileArguments, last: str) -> ToolResult:
        if asked.source.strip() and asked.edits:
            raise ToolRefused("give the whole source or edits of one, not both")
        if asked.source.strip():
            text = whole(asked.source)
        else:
            base = self.source(asked.base or ("" if last else "incumbent"), last)
            if not asked.edits:
                raise ToolRefused("give the whole file in `source`, or `edits` of `base`")
            try:
                text = apply_edits(self.store.get(base), [(edit.search, edit.replacement) for edit in asked.edits])
            except UnfitReply as unfit:
                return ToolResult(text=f"compile: the edits do not fit\n{data(str(unfit), 'why')}")
        texts, ideas = [(text, asked.note)], [0]
        for number, variant in enumerate(asked.variants, start=1):
            if variant.of >= number:
                raise ToolRefused(f"variant {number} is a form of variant {variant.of}, which has to stand before it")
            try:
                form = make_variant(texts[variant.of][0], variant)
            except UnfitReply as unfit:
                said = f"compile: variant {number} cannot be made; nothing was built"
                return ToolResult(text=f"{said}\n{data(str(unfit), 'why')}")
            texts.append((form, variant.note or f"variant {number} of {asked.note or 'it'}"))
            ideas.append(number if variant.source.strip() else ideas[variant.of])
        return self._made(texts, asked.then, asked.workloads, ideas)

    def _made(
        self,
        texts: Sequence[tuple[str, str]],
        then: Sequence[str],
        workloads: tuple[str, ...] = (),
        ideas: Sequence[int] = (0,),
    ) -> ToolResult:
        """Sources with their notes: built side by side, and what `then` says with those that can be. Forms of one idea have its number."""
        if any("\x00" in text for text, _ in texts):
            raise ToolRefused("the source holds NUL bytes")
        then, submits = tuple(name for name in then if name != "submit"), "submit" in then
        if submits and len(texts) > 1 and "time" not in then:
            then = (*then, "time")
        if (submits or "time" in then) and "check" not in then:
            then = ("check", *then)
        cases = self._cases(workloads, ()) if "time" in then else []
        notes: dict[str, str] = {}
        idea_of: dict[str, int] = {}
        try:
            for (text, note), idea in zip(texts, ideas, strict=True):
                text.encode()
                tunables(text)
                name = self.store.put(text)
                notes.setdefault(name, note)
                idea_of.setdefault(name, idea)
            with ThreadPoolExecutor(min(len(notes), os.cpu_count() or 1)) as pool:
                builds = list(pool.map(self.evaluator.build, notes))
        except ValueError as error:  # lone surrogates, a tunable that is none, a language that no backend takes
            return ToolResult(text=f"compile: the source cannot be taken\n{data(str(error), 'why')}")
        for build in builds:
            ledger.record_build(self.store, build, notes[build.candidate])
        facts = self.evaluator.facts
        said = (
            shown.describe_builds(builds, notes, facts) if len(builds) > 1 else shown.describe_build(builds[0], facts)
        )
        going = [build.candidate for build in builds if build.ok]
        outcome = Outcome.PASSED if going else Outcome.COMPILE_ERROR
        first = going[0] if going else builds[0].candidate
        found = ToolResult(text=said, candidate=first, outcome=outcome, made=tuple(notes))
        for name in then if going else ():
            more, going = self._with(name, going, cases, idea_of)
            found = more.model_copy(update={
                "text": f"{found.text}\n{more.text}", "made": found.made, "outcome": more.outcome or found.outcome,
                "checked": more.checked or found.checked, "gain": more.gain if more.gain is not None else found.gain,
                "over_best": more.over_best or found.over_best,
            })  # fmt: skip
            if found.outcome is not Outcome.PASSED:
                break
        return self._submitted_at_once(found, notes) if submits else found

    def _submitted_at_once(self, found: ToolResult, notes: Mapping[str, str]) -> ToolResult:
        """What was built, as the submission; or why it is none, behind what was said of it."""
        name = found.candidate
        if found.outcome is not Outcome.PASSED:
            why = "it does not compile" if found.outcome is Outcome.COMPILE_ERROR else "it is not right"
        elif name in (self.baseline, self.incumbent):
            why = "that is the source which is there already"
        elif found.over_best is not None and found.over_best <= 1:
            why = f"by these times it is {found.over_best:.2f} times as fast as the best so far; `submit` it where you know better"
        else:
            said = f"{found.text}\n{shown.SUBMITTED.format(name[:SHORT])}"
            return found.model_copy(update={"text": said, "submitted": True, "notes": notes[name]})
        return found.model_copy(update={"text": f"{found.text}\nnot submitted: {why}"})

    def _with(
        self, name: str, candidates: list[str], cases: list[Case], idea_of: Mapping[str, int]
    ) -> tuple[ToolResult, list[str]]:
        """One tool on several sources: what it says of the best of them, and those that go on, that one first."""
        first = candidates[0]
        if name == "profile":
            return self.profile(ProfileArguments(), first), candidates
        if name == "check":
            if len(candidates) == 1:
                found = self.check(CheckArguments(), first)
                return found, candidates if found.outcome is Outcome.PASSED else []
            return self._check_several(candidates, idea_of)
        several = SECONDS_OF_VARIANTS + SECONDS_A_VARIANT * len(candidates)
        seconds = several if len(candidates) > 1 else TimeArguments().seconds
        timed = self._timed(candidates, (self.incumbent,), cases, seconds)
        if timed.gain is None and timed.outcome is Outcome.PASSED and len(candidates) > 1:  # one beside it failed there
            with self._device:
                candidates = [one for one in candidates if self._verified(one).passed]
            timed = self._timed(candidates, (self.incumbent,), cases, seconds)
        return timed, [timed.candidate]

    def _check_several(self, candidates: list[str], idea_of: Mapping[str, int]) -> tuple[ToolResult, list[str]]:
        """All checks for the first that is right, a few for the others; the one that is the fastest has all of them before it is taken
        (`_timed`). Forms of one idea are mostly right or wrong alike: where its first is wrong they are left out."""
        smallest = min(self.evaluator.suite(), key=self.evaluator.moved_bytes)
        wrong: list[Verdict] = []
        with self._device:
            while going := [one for one in candidates if idea_of[one] not in {idea_of[v.candidate] for v in wrong}]:
                found = self._verified(going[0])
                if found.passed:
                    break
                wrong.append(found)
            brief = [self.evaluator.verify(self.evaluator.build(one), only=smallest) for one in going[1:]]
        for verdict in (verdict for verdict in brief if not verdict.passed):
            ledger.record_verdict(self.store, verdict)
        left_out = len(candidates) - len(going) - len(wrong)
        first = found if going else wrong.pop(0)
        text = shown.describe_several_checks(first, brief, smallest.label, wrong, left_out)
        going = [verdict.candidate for verdict in (first, *brief) if verdict.passed]
        return ToolResult(text=text, candidate=first.candidate, outcome=first.outcome, checked=True), going

    def check(self, asked: CheckArguments, last: str) -> ToolResult:
        candidate = self.source(asked.candidate, last)
        with self._device:
            verdict = self._verified(candidate)
        text = shown.describe_checks(verdict)
        return ToolResult(text=text, candidate=candidate, outcome=verdict.outcome, checked=True)

    def time(self, asked: TimeArguments, last: str) -> ToolResult:
        candidate = self.source(asked.candidate, last)
        if asked.tune:
            return self._tuned(candidate, asked.seconds)
        cases = self._cases(asked.workloads, asked.caches)
        others = tuple(dict.fromkeys(self.source(name, last) for name in asked.against)) or (self.incumbent,)
        if asked.against and candidate in others:
            raise ToolRefused("that is the same source twice")
        for name in (candidate, *others) if asked.against else (candidate,):
            with self._device:
                verdict = self._verified(name)
            if not verdict.passed:
                text = f"{shown.describe_checks(verdict)}\nOnly what is right is timed."
                return ToolResult(text=text, candidate=candidate, outcome=verdict.outcome, checked=name == candidate)
        return self._timed([candidate], others, cases, asked.seconds)

    def _timed(
        self, candidates: Sequence[str], others: Sequence[str], cases: Sequence[Case], seconds: float
    ) -> ToolResult:
        """Right sources beside the baseline and `others`, all in turns; what is said is said of the fastest of `candidates`."""
        first, *more = candidates
        beside = [one for one in dict.fromkeys((*more, *others)) if one not in (self.baseline, first)]
        numbers = (f"other {number}" for number in itertools.count(2))
        rivals = {"baseline": self.baseline} | dict(zip(itertools.chain(["incumbent"], numbers), beside, strict=False))
        every = {MINE: first, **rivals}
        arms = {name: one for name, one in every.items() if name == MINE or one in more}
        with self._device:
            quick = self.evaluator.compare_briefly(self.evaluator.build(first), rivals, cases, seconds=seconds)
        best, wrong = self._fastest(quick, arms) if quick.pairs else (MINE, [])
        said = describe_each(self.store, quick, every, self.evaluator.facts.device)
        for arm, (timings, _) in said.items():
            ledger.record_times(self.store, every[arm], timings)
        timings, pooled = said[best]
        gain = statistics.geometric_mean(timing.speedup.median for timing in timings) if timings else None
        left_s = self._call.left_s - quick.seconds
        times = shown.describe_times(quick, timings, pooled, every, best, self.incumbent, left_s)
        text = "\n".join([*map(shown.describe_checks, wrong), times])
        if len(arms) > 1 and timings:
            text += f"\n{shown.describe_choice(arms, best, pooled, lead(quick, best, arms))}"
        outcome = quick.outcome or Outcome.PASSED
        over = [
            found[arm].speedup.median
            for found in pooled
            for arm, of in every.items()
            if of == self.incumbent and arm in found
        ]
        over_best = statistics.geometric_mean(over) if over else None
        return ToolResult(
            text=text, candidate=arms[best], outcome=outcome, checked=True, gain=gain, over_best=over_best
        )

    def _fastest(self, quick: Quick, arms: dict[str, str]) -> tuple[str, list[Verdict]]:
        """Which of the arms (name -> hash, the first is right) is the fastest that all checks pass; who is faster and wrong leaves them."""
        wrong = []
        while (best := fastest(quick, arms)) != MINE:
            with self._device:
                verdict = self._verified(arms[best])
            if verdict.passed:
                break
            wrong.append(verdict)
            del arms[best]
        return best, wrong

    def _tuned(self, candidate: str, seconds: float) -> ToolResult:
        """The search of the tune gate, from the coder's seat."""
        if not find_open_tunables(self.store.get(candidate)):
            raise ToolRefused("that source has no open integer: a line `#define NAME 4  // tune: 2 4 8` makes one")
        with self._device:
            verdict = self._verified(candidate)
            if not verdict.passed:
                text = f"{shown.describe_checks(verdict)}\nOnly what is right is searched over."
                return ToolResult(text=text, candidate=candidate, outcome=verdict.outcome, checked=True)
            found = self.evaluator.tune(candidate, seconds=seconds)
        picked = ", ".join(f"{name}={value}" for name, value in found.values.items()) or "the numbers it came with"
        text = f"[{candidate[:SHORT]}] searched for {seconds:g} s, one series each; it would pick {picked}\n{data(found.reason, 'search')}"
        return ToolResult(text=text, candidate=candidate, outcome=Outcome.PASSED, checked=True)

    def _verified(self, candidate: str) -> Verdict:
        verdict = self.evaluator.verify(self.evaluator.build(candidate))
        if candidate != self.baseline:
            ledger.record_verdict(self.store, verdict)
        return verdict

    def _cases(self, labels: Sequence[str], caches: Sequence[Cache]) -> list[Case]:
        """Raises ToolRefused for a label that is none of the visible workloads'."""
        known = {workload.label: workload for workload in self.evaluator.suite()}
        if [label.strip().lower() for label in labels] == ["all"]:
            labels = [workload.label for workload in self.evaluator.suite() if workload.timed]
        for label in labels:
            if label.strip() not in known:
                known[label.strip()] = self._chosen(label.strip(), known)
        found: list[Case] = []
        for label in dict.fromkeys(labels):
            workload = known[label.strip()]
            here = [cache for cache in self.evaluator.caches(workload) if not caches or cache in caches]
            found += [(workload, cache) for cache in here or self.evaluator.caches(workload)]
        return found

    def _chosen(self, label: str, known: Iterable[str]) -> Workload:
        """A workload of a size that nobody listed. Raises ToolRefused."""
        chosen = read_workload(label, self.spec, self.evaluator.facts.device)
        if chosen is None:
            form = " ".join([self.spec.dtypes[0], *(f"{axis}=5" for axis in self.spec.axes)])
            raise ToolRefused(f"a workload is one of {'; '.join(known)}; or any size, written like {form}")
        if self.evaluator.moved_bytes(chosen) > MOST_BYTES:
            raise ToolRefused(f"a size of your own may take {MOST_BYTES >> 20} MiB of tensors at most")
        with self._device:
            if not self.evaluator.admits(chosen):
                raise ToolRefused("the operation has no result at that size")
        return chosen

    def profile(self, asked: ProfileArguments, last: str) -> ToolResult:
        candidate = self.source(asked.candidate, last)
        with self._device:
            build = self.evaluator.build(candidate)
            if not build.ok:
                raise ToolRefused("that source does not compile")
            if asked.function:
                return self._listing(asked, candidate)
            verdict = self._verified(candidate)  # what crashes or never ends is not run under a profiler
            if not verdict.passed:
                text = f"{shown.describe_checks(verdict)}\nOnly what is right is profiled; a function's listing can be had."
                return ToolResult(text=text, candidate=candidate, outcome=verdict.outcome)
            probes = self.evaluator.probes(build)
        try:
            named = list(functions(build, self.evaluator.facts)) if build.backend in ("cuda", "cpu") else []
        except ToolFailed:
            named = []
        timed = [workload for workload in self.evaluator.suite() if workload.timed]
        work = [(w.label, self.evaluator.moved_bytes(w), int(expression(self.spec.flops, w.axes) or 0)) for w in timed]
        text = shown.describe_probes(candidate, probes, shown.intensity(work), named)
        return ToolResult(text=text, candidate=candidate)

    def _listing(self, asked: ProfileArguments, candidate: str) -> ToolResult:
        try:
            known = functions(self.evaluator.build(candidate), self.evaluator.facts)
        except ToolFailed as failed:
            return ToolResult(text=f"profile: there is no listing\n{data(str(failed), 'why')}", candidate=candidate)
        fitting = [name for name in known if asked.function in name]
        if not fitting:
            text = f"profile: no function has that in its name\n{data(chr(10).join(list(known)[:60]), 'functions')}"
            return ToolResult(text=text, candidate=candidate)
        name = min(fitting, key=len)
        return ToolResult(text=shown.listing(candidate, name, known[name], asked.first_line), candidate=candidate)

    def read(self, asked: ReadArguments, last: str) -> ToolResult:
        if asked.what == "knowledge":
            return ToolResult(text=self._known(asked))
        if asked.what == "ledger":
            rows = ledger.rows(ledger.every(self.store), self.attempts)
            return ToolResult(text=shown.lines("\n".join(rows) or "nothing yet", "ledger", asked.first_line))
        if asked.what == "attempts":
            return ToolResult(
                text=shown.lines(shown.describe_attempts(self.attempts) or "nothing yet", "attempts", asked.first_line)
            )
        candidate = self.source(asked.name, last)
        text, name = self.store.get(candidate), candidate[:SHORT]
        if asked.what == "difference":
            other = self.source(asked.to, last)
            text = difference(self.store.get(other), text) or "no line differs"
            name = f"{other[:SHORT]} to {name}"
        return ToolResult(text=shown.lines(text, f"{asked.what} {name}", asked.first_line), candidate=candidate)

    def _known(self, asked: ReadArguments) -> str:
        """The page of that name; without one what is known of such kernels, and the names of all pages. Raises ToolRefused."""
        name = asked.name.strip().lower()
        if not name:
            known = knowledge(self.spec, self.evaluator.facts, families_of(self.spec, self.reference))
            mine = [one for one in every() if one.startswith("cpu_") == (self.evaluator.facts.device == "cpu")]
            others = f"There are more pages, by `name`: {', '.join(mine)}."
            return f"{others}\n{shown.lines(known, 'knowledge', asked.first_line)}"
        if name not in every():
            raise ToolRefused(f"there is no such page; there are {', '.join(every())}")
        return shown.lines(page(name), "knowledge", asked.first_line)

    def submit(self, asked: SubmitArguments, last: str) -> ToolResult:
        doubt = " ".join(asked.spec_doubt.split())
        return self._submitted(asked, last).model_copy(update={"notes": asked.notes, "spec_doubt": doubt})

    def _submitted(self, asked: SubmitArguments, last: str) -> ToolResult:
        if asked.none.strip() and not asked.candidate.strip():
            return ToolResult(text="the plan ends without a source", submitted=True, none=asked.none)
        candidate = self.source(asked.candidate, last)
        if candidate in (self.baseline, self.incumbent):
            raise ToolRefused("that is the source which is there already; say `none` where nothing comes of the plan")
        if not self.evaluator.build(candidate).ok:
            raise ToolRefused("that source does not compile: mend it first")
        with self._device:
            verdict = self._verified(candidate)
        if not verdict.passed:
            text = f"submit: not taken, for it is not right\n{shown.describe_checks(verdict)}"
            return ToolResult(text=text, candidate=candidate, outcome=verdict.outcome)
        text = shown.SUBMITTED.format(candidate[:SHORT])
        return ToolResult(text=text, candidate=candidate, outcome=verdict.outcome, submitted=True)

    def schedule(self, asked: ScheduleArguments, last: str) -> ToolResult:
        record = self._schedule(asked.candidate, last)
        return ToolResult(text=shown.schedule(record))

    def _schedule(self, name: str, last: str) -> dict[str, Any]:
        """Raises ToolRefused."""
        if not self.reference:
            raise ToolRefused("this operation has no reference.py that Astrolabe's compiler could start from")
        candidate = self.source(name or "incumbent", last)
        record = compiling.schedule_of(self.store.get(candidate))
        if record is not None:
            return record
        if name.strip():
            raise ToolRefused("Astrolabe's compiler did not write that source: it has no record at its head")
        try:
            return self._compilation.first_schedule()
        except ValueError as why:
            raise ToolRefused(str(why)) from None

    def try_schedule(self, asked: TryScheduleArguments, last: str) -> ToolResult:
        if asked.record.strip() and asked.edits:
            raise ToolRefused("give edits of a schedule, or a whole one, not both")
        try:
            record: dict[str, Any] | str = asked.record
            if not asked.record.strip():
                record = self._schedule(asked.candidate, last)
                for edit in asked.edits:
                    compiling.edit_schedule(record, edit.where, edit.value)
            elif not self.reference:
                raise ValueError("this operation has no reference.py that Astrolabe's compiler could start from")
            text = self._compilation.scheduled(record)
        except ValueError as illegal:
            raise ToolRefused(str(illegal)) from None
        return self._made([(text, asked.note)], asked.then)


_TOOLS: dict[type[Arguments], tuple[str, Callable[[Workbench, Arguments, str], ToolResult]]] = {
    CompileArguments: ("compile", Workbench.compile),  # type: ignore[dict-item]
    CheckArguments: ("check", Workbench.check),  # type: ignore[dict-item]
    TimeArguments: ("time", Workbench.time),  # type: ignore[dict-item]
    ProfileArguments: ("profile", Workbench.profile),  # type: ignore[dict-item]
    ReadArguments: ("read", Workbench.read),  # type: ignore[dict-item]
    SubmitArguments: ("submit", Workbench.submit),  # type: ignore[dict-item]
    ScheduleArguments: ("schedule", Workbench.schedule),  # type: ignore[dict-item]
    TryScheduleArguments: ("try_schedule", Workbench.try_schedule),  # type: ignore[dict-item]
}
