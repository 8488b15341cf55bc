"""How much faster a cluster is, and whether it says the same: the same candidates judged by one process and by N devices.

    python -m benchmarks.cluster judge --engine process --out one.json      # then dask:1, dask:2, dask:4
    python -m benchmarks.cluster compare one.json dask-1.json dask-2.json dask-4.json
    python -m benchmarks.cluster campaign --engine process --suite DIR --out one.json   # then dask:1, dask:2, dask:4; compare
    python -m benchmarks.cluster width --engine dask:4 --kernel fused_add_rmsnorm [-- --dtype float16 --tune-seconds 4]
    python -m benchmarks.cluster search --engine dask:4 --source FILE --kernel fused_add_rmsnorm

`judge`: candidates of the catalog's kernels that are as fast as the baseline, slower by a known share, or another baseline,
each with an Evaluator and a store of its own, as a campaign's runs have them, in which only what a run builds once is built
already; none is begun after --seconds. `compare`: pace, share of linear, the engine's overhead a question, and how often
FASTER, SLOWER or SAME agree with the first file, of the candidates that both have. `campaign`: `run.py campaign` with the rules
over a suite, as one engine carries it out, as a record that `compare` reads. `search`: the open integers of a source, searched on
all devices of a cluster and on one, whose workers have timed a variant before. `width`: a round of four plans on as many
devices against a round of one.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import run
from benchmarks.comparison import CLOCK_GHZ, FUNCTIONS, LOSE_TIME
from graph.campaign import Campaign, CampaignEntry
from harness import engines
from harness.engines import Engine
from harness.evaluate import Evaluator
from harness.judge.search import find_open_tunables
from harness.questions import CheckToolchain, MeasureVariants, Tune
from harness.report.campaign_page import EAGER
from harness.store import Store, write_atomically
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Device

KERNELS = ("silu_and_mul", "fused_add_rmsnorm", "merge_attn_states_lse")
SLOWER_US = (0.0, 0.0, 0.3, 1.0, 3.0)
"""A call, on a GPU; thirty times that on a CPU."""
SURE = ("FASTER", "SLOWER", "SAME")


def candidates(kernel: Kernel, on: Device, count: int) -> Iterator[tuple[str, str]]:
    """(name, text): twins of the baseline, some of which wait, and the kernel's other baselines first."""
    name, path = kernel.baseline(on)
    text = path.read_text()
    others = [(other, path.read_text()) for other, path in kernel.baselines(on).items() if other != name]
    yield from others
    for number in range(count - len(others)):
        slow_us = SLOWER_US[number % len(SLOWER_US)] * (30 if on == "cpu" else 1)
        more = text
        if slow_us:
            wait = LOSE_TIME[on].format(cycles=int(slow_us * CLOCK_GHZ * 1e3), nanoseconds=int(slow_us * 1e3))
            more = wait + re.sub(FUNCTIONS[on], r"\1 lose_time();", text)
        yield f"twin {number}, {slow_us:g} us slower", f"{more}\n// twin {number}\n"


class Overhead:
    """Of every job about a candidate: seconds between question and answer that nobody worked on it. Only for a cluster."""

    def __init__(self, engine: Engine) -> None:
        self.seconds: list[float] = []
        self.rows: list[tuple[float, str, str, float, float, str]] = []
        """When it was asked, by which store, what, seconds of the engine and of the worker, and at which place."""
        self.lock = threading.Lock()
        self.began = time.monotonic()
        if engine.here:
            return
        ask = engine.ask

        def timed(job, contents, say, began):
            start, places = time.monotonic(), [""]

            def at(place: str) -> None:
                places.append(place)
                began(place)

            answer = ask(job, contents, say, at)
            if not isinstance(job.question, CheckToolchain):  # which is answered once a connection
                own = time.monotonic() - start - answer.seconds
                with self.lock:
                    self.seconds.append(own)
                    self.rows.append((start - self.began, job.asker[:8], job.kind, own, answer.seconds, places[-1]))
            return answer

        engine.ask = engine.cluster.ask = timed  # a campaign makes an engine of each kind of device


def build_once(engine: Engine, kernels: list[Kernel], dtype: str, folder: Path) -> Store:
    """A store with the builds that a run makes once, whatever it judges."""
    store = Store(folder)
    for kernel in kernels:
        with engine.evaluator(kernel, store, dtypes=(dtype,)) as evaluator, ThreadPoolExecutor(4) as pool:
            baseline = store.put(kernel.baseline(engine.device)[1].read_text())
            list(pool.map(evaluator.build, [baseline, *evaluator.beside()]))
    return store


def judge_item(engine: Engine, item: tuple[Kernel, str, str], dtype: str, built: Store) -> dict:
    """One candidate's verdict, by an Evaluator of its own."""
    kernel, name, text = item
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        built.link_to(Path(folder))
        store = Store(Path(folder))
        with engine.evaluator(kernel, store, dtypes=(dtype,)) as evaluator:
            baseline = store.put(kernel.baseline(engine.device)[1].read_text())
            verdict = evaluator.verify(evaluator.build(store.put(text)))
            if verdict.passed:
                verdict = evaluator.measure(verdict, baseline=baseline)
    said = str(verdict.suite.comparison) if verdict.suite else str(verdict.outcome)
    gain = verdict.suite.speedup.median if verdict.suite else None
    name = f"{kernel.spec.name}: {name}"
    return {"item": name, "said": said, "speedup": gain, "seconds": time.monotonic() - began}


def judge(asked: argparse.Namespace) -> None:
    opening = time.monotonic()
    with (
        closing(engines.open_engine(engines.choice(asked.engine), asked.device, print)) as engine,
        tempfile.TemporaryDirectory() as folder,
    ):
        opened_s = time.monotonic() - opening
        print(f"{asked.engine} is open after {opened_s:.1f} s, {engine.width()} side by side: {engine.why}", flush=True)
        on = engine.device
        dtype = "float16" if on == "cuda" else "float32"
        kernels = [catalog.load(name) for name in asked.kernel or KERNELS]
        each = -(-asked.candidates // len(kernels))
        # Kernels in turn, so that neighbours in time are not of one kind.
        rows = zip(*(list(candidates(kernel, on, each)) for kernel in kernels), strict=True)
        todo = [(kernel, *one) for row in rows for kernel, one in zip(kernels, row, strict=True)][: asked.candidates]
        built = build_once(engine, kernels, dtype, Path(folder))
        overhead, first = Overhead(engine), time.monotonic()

        def in_time(item: tuple[Kernel, str, str]) -> dict | None:
            return judge_item(engine, item, dtype, built) if time.monotonic() - first <= asked.seconds else None

        with ThreadPoolExecutor(engine.width()) as pool:
            found = [made for made in pool.map(in_time, todo) if made is not None]
        if not found:
            raise SystemExit(f"no candidate was begun within --seconds {asked.seconds:g}")
        record = {
            "engine": asked.engine, "device": engine.why, "width": engine.width(), "opened_s": opened_s,
            "wall_s": time.monotonic() - first, "overhead_s": overhead.seconds, "items": found,
        }  # fmt: skip
    asked.out.write_text(json.dumps(record, indent=1))
    print(f"{len(found)} candidates in {record['wall_s']:.1f} s on {record['width']}: {asked.out}")


def campaign(asked: argparse.Namespace) -> None:
    """One `run.py campaign`, its engine's overhead noted as it goes; the record is written anew as each problem ends."""
    opened: list[tuple[Engine, Overhead, int, float, float]] = []
    open_engine, ended, began = engines.open_engine, Campaign._ended, time.monotonic()
    ends: dict[str, float] = {}

    def note(*words, **more) -> Engine:
        engine = open_engine(*words, **more)
        opened_s = time.monotonic() - began
        print(f"{asked.engine} is open after {opened_s:.1f} s, {engine.width()} side by side", flush=True)
        while asked.gate is not None and not asked.gate.exists():
            time.sleep(0.1)
        opened.append((engine, Overhead(engine), engine.width(), opened_s, time.monotonic()))
        return engine

    def write(entries: list[CampaignEntry]) -> None:
        ((engine, overhead, width, opened_s, first),) = opened
        items = [
            {"item": one.id, "said": _in_words(one), "speedup": one.solved.speedup.get(EAGER), "seconds": one.wall_seconds,
             "nodes": one.nodes, "reason": one.reason, "ended_s": ends.get(one.id)}
            for one in entries
        ]  # fmt: skip
        record = {
            "engine": asked.engine, "device": engine.why, "width": width, "opened_s": opened_s,
            "wall_s": time.monotonic() - first, "overhead_s": list(overhead.seconds), "questions": list(overhead.rows), "items": items,
        }  # fmt: skip
        write_atomically(asked.out, json.dumps(record, indent=1, default=lambda interval: interval.median))

    def ended_in_time(of: Campaign, *words) -> bool:
        if time.monotonic() - opened[0][-1] > asked.seconds:
            return True  # it has no entry, and the campaign ends with what it has begun
        whole = ended(of, *words)
        with of.writing:
            ends[words[0].id] = time.monotonic() - opened[0][-1]
            write(of.entries())
        return whole

    engines.open_engine, Campaign._ended = note, ended_in_time  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        code = run.main(
            ["campaign", "--suite", str(asked.suite), "--device", asked.device, "--engine", asked.engine, "--protocol", "ours", "--policy",
             "rules", "--name", "c", "--runs-dir", folder, "--no-live", *asked.more]
        )  # fmt: skip
    if code:
        raise SystemExit(code)
    record = json.loads(asked.out.read_text())
    print(
        f"{len(record['items'])} problems in {record['wall_s']:.1f} s on {record['width']}, opened in "
        f"{record['opened_s']:.1f} s; {_warm_pace(record)}: {asked.out}"
    )
    for line in _by_worker(record):
        print(f"    {line}")


def _warm_pace(record: dict) -> str:
    """Pace after each worker's first problem: until then it starts processes that the next ones use."""
    ends = sorted(one["ended_s"] for one in record["items"] if one.get("ended_s") is not None)
    warm = ends[record["width"] :]
    if len(warm) < 2:
        return "too few problems for a pace after each worker's first"
    first = ends[record["width"] - 1]
    rate = len(warm) / (warm[-1] - first)
    return f"{len(warm)} after each worker's first, {rate:.4f} a second ({rate / record['width']:.4f} a worker)"


def _in_words(entry: CampaignEntry) -> str:
    """The outcome, or on which side of eager the whole interval lies."""
    if (gain := entry.solved.speedup.get(EAGER)) is None:
        return entry.outcome or entry.state
    return "FASTER" if gain.low > 1 else "SLOWER" if gain.high < 1 else "UNCLEAR"


def search(asked: argparse.Namespace) -> None:
    """The same search on all devices and on one, each with a store of its own, the first variants built ahead as a run has them."""
    source = asked.source.read_text()
    with closing(engines.open_engine(engines.choice(asked.engine), asked.device, print)) as engine:
        kernel, overhead = catalog.load(asked.kernel[0]), Overhead(engine)
        took: dict[str, float] = {}
        warm = (("warm", engine.idle),) if asked.warm else ()
        for name, idle in (*warm, ("all that are idle", engine.idle), ("one device", lambda: 1)):
            with tempfile.TemporaryDirectory() as folder:
                store = Store(Path(folder))
                with engine.evaluator(kernel, store, dtypes=(asked.dtype,)) as evaluator:
                    candidate = store.put(f"{source}\n// {name}\n")
                    if name == "warm":
                        _warm_up(engine, evaluator, candidate)
                        continue
                    evaluator.build(candidate)
                    ahead = time.monotonic()
                    evaluator.build_ahead(candidate)
                    began = time.monotonic()
                    print(f"{name}: the first variants were built in {began - ahead:.1f} s", flush=True)
                    evaluator.say = lambda text, of=name, since=began: print(
                        f"    {of}, {time.monotonic() - since:.1f} s: {text}", flush=True
                    )
                    found = Tune(candidate=candidate, seconds=asked.seconds).answer_in_parts(
                        evaluator, evaluator.ask, idle
                    )
                    took[name] = time.monotonic() - began
            said = f"{found.values}; split {found.split}; on {evaluator.measured.get('devices')}"
            print(f"{name}: {took[name]:.1f} s, {found.reason}; {said}", flush=True)
            for kind in ("compile", "measurevariants"):
                rows = [row for row in overhead.rows if row[2] == kind]
                parts = (
                    f"{at - began + overhead.began:.1f}:{worked:.1f}s"
                    for at, _asker, _kind, _own, worked, _place in rows
                )
                print(f"    {kind} at second, of seconds: {' '.join(parts)}", flush=True)
            overhead.rows.clear()
        every, one = took.values()
        print(f"all that are idle take {every / one:.2f} of one device's time", flush=True)


def _warm_up(engine: Engine, evaluator: Evaluator, candidate: str) -> None:
    """Each device has timed a variant of the source."""
    first = find_open_tunables(evaluator.store.get(candidate))[0]
    workload = next(one for one in evaluator.suite() if one.timed)
    question = MeasureVariants(
        candidate=candidate,
        variants=({first.name: first.choices[0]},),
        cases=((workload, evaluator.caches(workload)[0], "plain"),),
        blocks=1,
    )
    with ThreadPoolExecutor(engine.width()) as pool:
        list(pool.map(evaluator.ask, [question] * engine.width()))


def compare(asked: argparse.Namespace) -> None:
    first, *others = [json.loads(path.read_text()) for path in asked.files]
    print(
        f"{first['engine']}: {len(first['items'])} of a kind in {first['wall_s']:.1f} s, a median of "
        f"{statistics.median(one['seconds'] for one in first['items']):.1f} s each"
    )
    said = {one["item"]: one["said"] for one in first["items"]}
    for other in others:
        both = [one for one in other["items"] if one["item"] in said]
        pairs = [(said[one["item"]], one["said"]) for one in both]
        sure = [(a, b) for a, b in pairs if a in SURE and b in SURE]
        paces = [record["wall_s"] / len(record["items"]) for record in (first, other)]
        linear = paces[0] / paces[1] / other["width"]
        took = {one["item"]: one["seconds"] for one in first["items"] if one["speedup"] is not None}
        mine = {one["item"]: one["seconds"] for one in both if one["speedup"] is not None and one["item"] in took}
        sums = sum(took[name] for name in mine), sum(mine.values())
        overhead = sorted(other["overhead_s"]) or [0.0]
        print(
            f"{other['engine']}: {len(other['items'])} in {other['wall_s']:.1f} s on {other['width']}, {linear:.3f} of "
            f"linear; the {len(mine)} that both timed took {sums[0]:.1f} s and {sums[1]:.1f} s; verdicts agree "
            f"{sum(a == b for a, b in pairs)} of {len(pairs)}, where both are sure {sum(a == b for a, b in sure)} of "
            f"{len(sure)}; overhead a question: median {statistics.median(overhead) * 1e3:.1f} ms, largest "
            f"{overhead[-1] * 1e3:.1f} ms, {_describe_engine(other)}"
        )
        if sums[0]:
            print(f"    {_describe_shares(first, other, sums)}")
        warm = [_warm(record) for record in (first, other)]
        if later := warm[0].keys() & warm[1].keys():
            spent = [sum(one[name] for name in later) for one in warm]
            print(
                f"    the {len(later)} that were no worker's first in either took {spent[0]:.1f} s and {spent[1]:.1f} s: "
                f"{spent[0] / spent[1]:.3f}"
            )
        for one in both:
            if one["item"] in mine:
                print(
                    f"        {one['item'][:44]}: {took[one['item']]:.1f} s and {one['seconds']:.1f} s, {one['said']}"
                )
        for line in _by_kind(other):
            print(f"    {line}")
        for record in (first, other):
            if any("ended_s" in one for one in record["items"]):
                print(f"    {record['engine']}: {_warm_pace(record)}")
        for one in both:
            if said[one["item"]] != one["said"]:
                print(f"    {one['item']}: {said[one['item']]} and {one['said']} ({one['speedup']})")


def _describe_engine(record: dict) -> str:
    """Milliseconds of engine an item and a verdict: a problem has some three. Where a campaign is cut off more problems are built ahead than
    it ends: these builds count once a problem."""
    items, whole = len(record["items"]), sum(record["overhead_s"]) * 1e3
    if not (rows := record.get("questions")):
        return f"{whole / items:.0f} ms a verdict"
    within = {row[1] for row in rows if row[2] != "compile"}
    own = [row[3] * 1e3 for row in rows if row[1] in within]
    ahead = [row[3] * 1e3 for row in rows if row[1] not in within]
    each = (sum(own) + statistics.fmean(ahead or [0.0]) * items) / items
    verdicts = sum(row[2] == "verify" for row in rows) / items
    return (
        f"{each:.0f} ms a problem of {len(own) / items:.1f} questions and a build ahead, {each / max(1.0, verdicts):.0f} ms for each of its "
        f"{verdicts:.1f} verdicts ({whole / items:.0f} ms a problem with all builds ahead)"
    )


def _describe_shares(first: dict, other: dict, sums: tuple[float, float]) -> str:
    """What of the linear pace is lost where, by the problems that both timed, whichever others each came to."""
    at_work = [_share_at_work(record) for record in (first, other)]
    slower = sums[0] / sums[1]
    return (
        f"by these: a device works {slower:.3f} times as fast as the first's, has a problem for {at_work[1]:.3f} of the time "
        f"(the first's {at_work[0]:.3f}): {slower * at_work[1] / at_work[0]:.3f} of linear"
    )


def _share_at_work(record: dict) -> float:
    """Share of the time in which a device has a problem, until the last one begins: what comes after is the end of a campaign that is cut off."""
    ended = [one for one in record["items"] if one.get("ended_s") is not None]
    last = max((one["ended_s"] - one["seconds"] for one in ended), default=0.0)
    if len(ended) <= record["width"]:
        return sum(one["seconds"] for one in record["items"]) / record["wall_s"] / record["width"]
    return (
        sum(max(0.0, min(last, one["ended_s"]) - one["ended_s"] + one["seconds"]) for one in ended)
        / last
        / record["width"]
    )


def _warm(record: dict) -> dict[str, float]:
    """Seconds by problem, of those that were timed and that were not the first of a worker."""
    ended = [one for one in record["items"] if one.get("ended_s") is not None]
    begun = sorted(ended, key=lambda one: one["ended_s"] - one["seconds"])
    return {one["item"]: one["seconds"] for one in begun[record["width"] :] if one["speedup"] is not None}


def _by_kind(record: dict) -> Iterator[str]:
    """Milliseconds of engine by question."""
    kinds: dict[str, list[float]] = {}
    for _at, _asker, kind, engine_s, *_ in record.get("questions", ()):
        kinds.setdefault(kind, []).append(engine_s * 1e3)
    count = len(record["items"])
    for kind, found in sorted(kinds.items(), key=lambda one: -sum(one[1])):
        yield (
            f"{kind}: {len(found) / count:.1f} a problem, median {statistics.median(found):.1f} ms, largest {max(found):.1f} ms, "
            f"{sum(found) / count:.1f} ms a problem"
        )


def _by_worker(record: dict) -> Iterator[str]:
    """Where each second of a worker went while problems were begun: work by question, the engine, and what is left."""
    timed = [row for row in record.get("questions", ()) if row[2] not in ("compile", "checktoolchain")]
    ended = [one for one in record["items"] if one.get("ended_s") is not None]
    for place in sorted({row[5] for row in timed if row[5]}):
        own = sorted(row for row in timed if row[5] == place)
        askers = list(dict.fromkeys(row[1] for row in own))
        spans = [[row for row in own if row[1] == asker] for asker in askers]
        held = sum(rows[-1][0] + rows[-1][3] + rows[-1][4] - rows[0][0] for rows in spans)
        work: dict[str, float] = {}
        for row in own:
            work[row[2]] = work.get(row[2], 0.0) + row[4]
        spent, engine_s = sum(work.values()), sum(row[3] for row in own)
        end = own[-1][0] + own[-1][3] + own[-1][4]
        parts = ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in sorted(work.items(), key=lambda one: -one[1]))
        yield (
            f"{place}: {len(askers)} problems; {spent:.1f} s of work ({parts}), {engine_s:.2f} engine, {held - spent - engine_s:.1f} waiting "
            f"for the parent within a problem, {own[0][0]:.1f} before its first, {end - own[0][0] - held:.1f} between problems, "
            f"{max([end, *(one['ended_s'] for one in ended)]) - end:.1f} behind its last"
        )


def width(asked: argparse.Namespace) -> None:
    seconds = {}
    for plans in (1, asked.width):
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable, "run.py", "--kernel", asked.kernel[0] if asked.kernel else KERNELS[1], "--device", asked.device,
                "--engine", asked.engine, "--width", str(plans), "--rounds", str(asked.rounds), "--patience",
                str(asked.rounds), "--policy", "rules", "--runs-dir", folder, "--run-id", "w", "--no-live", "--json", *asked.more,
            ]  # fmt: skip
            began = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode not in (0, 3):
                raise SystemExit(done.stderr[-2000:])
            seconds[plans] = time.monotonic() - began
        result = json.loads(done.stdout)
        nodes = sorted(result["spent"]["nodes"].items(), key=lambda one: -one[1])
        print(
            f"--width {plans}: {seconds[plans]:.1f} s wall time, {len(result['attempts'])} attempts; "
            f"{result['spent']['seconds']:.1f} s by node: {', '.join(f'{name} {s:.1f}' for name, s in nodes if s >= 0.1)}",
            flush=True,
        )
    print(f"--width {asked.width} takes {seconds[asked.width] / seconds[1]:.2f} times as long as --width 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("judge")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--candidates", type=int, default=42, help="at most (42)")
    one.add_argument("--seconds", type=float, default=140, help="begin no candidate after so many (140)")
    two = commands.add_parser("compare")
    two.add_argument("files", type=Path, nargs="+")
    three = commands.add_parser("width")
    three.add_argument("--width", type=int, default=4)
    three.add_argument("--rounds", type=int, default=2)
    three.add_argument("more", nargs="*", help="options of run.py, behind --")
    four = commands.add_parser("campaign")
    four.add_argument("--suite", type=Path, required=True)
    four.add_argument("--out", type=Path, required=True)
    four.add_argument("--seconds", type=float, default=float("inf"), help="begin no problem later (no end)")
    four.add_argument("--gate", type=Path, help="begin once this file is there, the engine open until then (at once)")
    four.add_argument("more", nargs="*", help="options of run.py campaign, behind --")
    five = commands.add_parser("search")
    five.add_argument("--source", type=Path, required=True, help="a source with open integers")
    five.add_argument("--dtype", default="float16")
    five.add_argument("--seconds", type=float, default=120, help="at most (120)")
    five.add_argument("--no-warm", dest="warm", action="store_false", help="the devices have worked before")
    for made, go in ((one, judge), (two, compare), (three, width), (four, campaign), (five, search)):
        made.set_defaults(go=go)
        if made is not two:
            made.add_argument("--engine", default="process" if made in (one, four) else "dask")
            made.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
            made.add_argument("--kernel", action="append", default=[])
    asked = parser.parse_args()
    asked.go(asked)


if __name__ == "__main__":
    main()
