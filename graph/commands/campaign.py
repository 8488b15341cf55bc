"""`run.py campaign`: every problem of a suite."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from graph.commands.opened import engine, open_service
from graph.commands.options import BOTH, EXIT_INTERRUPTED, UNSAID, AsJson, ByProtocol, Command, RunsDir
from graph.request import EachRequest
from harness.options import Option, command_line, words
from nodes.options import Chat

if TYPE_CHECKING:
    from graph.ahead import Ahead
    from graph.campaign import Campaign, CampaignRecord, ProblemPlan
    from harness.engines import Engine
    from kernels.spec import Device


EACH = "for every problem (the other options of `run.py --kernel FILE.py`, too)"
PLACE = ("engine", "device_model", "tls", "insecure")
"""A campaign may go on elsewhere."""
UNLISTED = (
    "dtypes", "exact", "patience", "enough_seconds", "light_fraction", "fallback", "review", "coder", "turns", "tool_seconds", "device_model", "tls",
    "insecure", "sandbox", "repairs", "tune_seconds", "own_kernels", "agents",
    *(name for name in Chat.model_fields if name != "models"),
)  # fmt: skip
NOT_OF_EACH = ("kernel", "baseline", "source", "draft", "run_id", "approve", "transcript", "role_policy")


class CampaignCommand(ByProtocol, AsJson, RunsDir, Command):
    """Every problem of a suite as a run of its own. The same command goes on where it was killed."""

    suite: Annotated[str, Option("NAME|PATH")]
    """Starter, a checkout of KernelBench, flashinfer-bench or SOL-ExecBench, one file of it, or
    hf:ScalingIntelligence/KernelBench, which is fetched."""
    levels: Annotated[str, Option("1,2,3")] = ""
    """Levels of KernelBench to run."""
    shuffle: Annotated[int | None, Option("SEED", usual="by number")] = Field(default=None, ge=0)
    """Draw the order from SEED, levels mixed: what is done at any time is a sample of all."""
    samples: Annotated[int, Option("K")] = Field(default=1, ge=1)
    """Runs of each problem that know nothing of each other; the report has pass@k over them."""
    name: str = ""
    """Name the campaign."""
    no_live: bool = False
    """Plain lines instead of the live table."""
    each: Annotated[EachRequest, Option(group=EACH, without=NOT_OF_EACH, unlisted=UNLISTED)] = EachRequest()

    def go(self) -> int:
        from graph.runs import RunError

        if self.protocol in BOTH and self.each.place.engine != "process":
            raise RunError(
                f"--protocol {self.protocol} times on this machine, beside our own times: leave --engine away"
            )
        if self.samples > 1 and self.each.memory == "on":
            raise RunError("--samples are independent of each other: leave --memory on away, or take one sample")
        on = _find_device(self.each)
        with ExitStack() as stack:
            # What is wrong with it is said before a cluster opens, which takes half a minute.
            locked = stack.enter_context(_locked(self, on)) if on else None
            at_work = stack.enter_context(engine(self.each.place, self.each.device, every=True))
            found, record = locked or stack.enter_context(_locked(self, at_work.device))
            return _campaign(self, at_work, found, found.begin(record))


def _find_device(each: EachRequest) -> Device | None:
    """The device, where it is known before the engine is open. Raises DeviceError."""
    from harness import device

    return None if each.place.choice().address else device.choose(each.device)[0]


@contextmanager
def _locked(asked: CampaignCommand, on: Device) -> Iterator[tuple[Campaign, CampaignRecord]]:
    """The campaign, which nobody else works on meanwhile, and what is asked of it. On a GPU its first problems are being read."""
    from graph import campaign as campaigns
    from graph.ahead import begin_first

    name, each = asked.name or f"{_suite_name(asked.suite)}-{on}", asked.each.with_(device=on)
    found = campaigns.Campaign(asked.runs_dir, name)
    problems = _problems(asked, found.folder)
    record = campaigns.make_record(name, asked.suite, on, words(each, leave_out=PLACE), problems, asked.samples)
    found.check(record)
    with found.lock():
        if on == "cuda":  # on a CPU a cluster's workers are being timed meanwhile
            begin_first(
                partial(_read, each), [path for path in problems if found.entry(campaigns.entry_id(path)) is None]
            )
        yield found, record


def _read(each: EachRequest, path: Path) -> None:
    """Describe a problem and draft it by the rules; what is found is kept in this process, what is wrong is said in its turn."""
    from graph.campaign import UNFIT
    from graph.choices import policies
    from harness.problems import pytorch
    from nodes import drafting

    with suppress(*UNFIT):
        text = pytorch.describe_ahead(path)
        if policies(each.with_(kernel=str(path), run_id=""))[0]["drafter"] == "rules":
            drafting.draft(text, each.device, each.numerics)


def _campaign(asked: CampaignCommand, at_work: Engine, found: Campaign, record: CampaignRecord) -> int:
    from graph import campaign as campaigns
    from graph.campaign_live import CampaignDisplay, summary

    on = at_work.device
    protocol = asked.protocol or ("both" if on == "cuda" and at_work.here else "ours")
    each, problems = asked.each.with_(device=on), record.problems
    stop = None if at_work.here else threading.Event()
    kinds = at_work.kinds()
    drafts = found.folder.resolve() / "ahead"
    plans = [
        _plan(asked, each, protocol, one, kind if len(kinds) > 1 else "", stop, drafts) for kind, one in kinds.items()
    ]
    out = sys.stderr if asked.as_json else sys.stdout
    entries = found.entries([plan.kind for plan in plans])
    display = CampaignDisplay(len(problems) * len(plans) * asked.samples, entries, out, live=not asked.no_live)
    display.workers = at_work.lines
    with display.show(), _ahead(found, plans, at_work) as ahead:
        whole = found.work(plans, display, stop, ahead)
    if not whole:
        print("interrupted; give the same command to go on", file=sys.stderr)
        sys.stderr.flush()
        os._exit(EXIT_INTERRUPTED)  # a node may still be at work in its thread; under sync durability it loses nothing
    for plan in plans:
        suffix = f"-{campaigns.slug(plan.kind)}" if plan.kind else ""
        if asked.as_json:
            print((found.folder / f"summary{suffix}.json").read_text(), end="")
        print(
            f"{summary(campaigns.by_problem(found.entries([plan.kind])))}\n{found.folder / f'report{suffix}.html'}",
            file=out,
        )
    if len(plans) == 1:
        print(display.so_far(), file=out)
    return 0


@contextmanager
def _ahead(found: Campaign, plans: list[ProblemPlan], at_work: Engine) -> Iterator[Ahead | None]:
    """What reads and drafts the next problems, where there are cores for it on which nothing is timed."""
    from graph.ahead import apart, while_timing

    cores = at_work.cores()
    if not cores.spare:
        yield None
        return
    with apart(cores):
        waiting = list(dict.fromkeys(task.path for task in found.list_left(plans)))
        with closing(while_timing(plans[0].prepare, waiting, cores.spare, plans[0].at_once())) as ahead:
            yield ahead


def _suite_name(suite: str) -> str:
    from kernels.suites import hugging_face

    if hugging_face.is_hugging_face(suite):
        return hugging_face.name(suite)
    path = Path(suite).resolve()
    return path.stem if path.is_file() else path.name


def _problems(asked: CampaignCommand, folder: Path) -> list[Path]:
    """`folder`: the campaign's, which keeps the files of a data set."""
    from graph.runs import RunError
    from harness.store import name_full_disk
    from kernels import suites
    from kernels.suites import hugging_face

    try:
        levels = tuple(int(level) for level in asked.levels.split(",") if level)
    except ValueError:
        raise RunError(f"--levels {asked.levels!r} is no list of numbers such as 1,2") from None
    suite = asked.suite
    if hugging_face.is_hugging_face(suite):
        with name_full_disk(folder):
            suite = str(hugging_face.fetch(suite, folder.resolve() / "suite"))
    files = suites.problems(suite, levels)
    return files if asked.shuffle is None else suites.shuffle(files, asked.shuffle)


def _plan(
    asked: CampaignCommand,
    each: EachRequest,
    protocol: str,
    at_work: Engine,
    kind: str,
    stop: threading.Event | None,
    ahead: Path,
) -> ProblemPlan:
    """What the campaign does with a problem on that kind of device; `ahead` holds what is built of the next ones."""
    from graph import campaign as campaigns
    from graph.choices import choose
    from harness.store import Store
    from nodes import drafting

    if kind:
        each = each.with_(device_model=kind)

    def chosen(path: Path, run_id: str):
        request = each.with_(kernel=str(path), run_id=run_id)
        return choose(request, at_work, command_line(request, leave_out=UNSAID))

    built: dict[Path, Store] = {}

    def prepare(path: Path) -> None:
        """What is found is kept in this process; what is wrong with the problem is said in its turn."""
        with suppress(*campaigns.UNFIT):
            choice = chosen(path, "")
            if choice.settings.policy["drafter"] != "rules":
                return
            draft = drafting.draft(choice.kernel.text, at_work.device, choice.settings.numerics).source
            if draft.strip():
                store = Store(ahead / campaigns.entry_id(path))
                with at_work.evaluator(choice.kernel, store) as evaluator:
                    evaluator.build(store.put(draft))
                built[path] = store

    return campaigns.ProblemPlan(
        choose=chosen,
        prepare=prepare,
        built=built.get,
        open_service=lambda runs: open_service(runs, engine=at_work, stop=stop),
        ask=lambda _question, _store: None,
        protocol=campaigns.by_kernelbench(at_work.device) if protocol in BOTH else None,
        kind=kind,
        at_once=at_work.width,
    )
