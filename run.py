"""Astrolabe's command line. What takes time to import is imported by the command that needs it."""

from __future__ import annotations

import argparse
import codecs
import difflib
import errno
import fnmatch
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from graph.runs import Run
    from graph.session import Door, Ending

ROLES = ("tester", "drafter", "profiler", "planner", "coder")
EPILOG = """\
commands (python run.py COMMAND --help):
  resume RUN            go on with a run after Ctrl-C, a kill, a reboot, a pause
  runs                  list the runs
  show RUN              a run's attempts
  compare RUN RUN       two runs, or two files of results, side by side
  history RUN           a run's checkpoints
  fork RUN              a new run from a checkpoint of another
  graph [RUN]           draw the graph, and the path that a run took
  campaign              every problem of a suite, one run each, one report
  evaluate FILE         the verdict on one file, without any agent
  export RUN            the best source as a package with a torch operator
  model RUN...          what a model's step gains by the best of runs
  kernels               list the kernels
  epoch                 train a graph neural network on mini-batches (docs/minibatch.md)
  infer                 its accuracy from sampled and from all neighbours

exit codes:
  0   improved, or already at the limit      3    finished without improvement
  1   our own failure                        75   paused: an answer or an approval is missing; resume goes on
  2   bad usage, bad input, a full disk      130  interrupted; resume goes on
"""
STARTING_S = 4.0
"""What is not shown by then says that it is still starting."""
EXIT_FAILURE, EXIT_USAGE, EXIT_SAME, EXIT_PAUSED, EXIT_INTERRUPTED = 1, 2, 3, 75, 130

# By name, so that none of their modules is imported for `--help`. Each has one sentence for the user.
USER_ERRORS = {
    "graph.runs.RunError",
    "graph.draw.DrawError",
    "harness.device.DeviceError",
    "harness.dropin.ExportError",
    "harness.evaluate.MissingTool",
    "kernels.catalog.KernelError",
    "nodes.spans.SpansMissing",
    "minibatch.graphs.GraphError",
    "minibatch.native.NativeError",
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def number(kind: type, least: float, *, above: bool = False):
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not (value > least if above else value >= least):
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} {'above' if above else 'of at least'} {least:g}")
        return value

    return parse


def common(parser: argparse.ArgumentParser, *, json_too: bool = True) -> None:
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept (runs)")
    parser.add_argument(
        "--checkpointer",
        metavar="URL",
        default=os.environ.get("ASTROLABE_CHECKPOINTER", ""),
        help="postgresql://user:password@host/database instead of SQLite in the run's folder; never written down, so a "
        "resume needs it again, here or in ASTROLABE_CHECKPOINTER",
    )
    if json_too:
        parser.add_argument(
            "--json", action="store_true", help="the record as JSON on standard output, nothing else there"
        )


def on_device(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--kernel", required=required, metavar="NAME|FOLDER|FILE.py",
        help="a kernel of the catalog, a folder, or a PyTorch module in KernelBench's form",
    )  # fmt: skip
    parser.add_argument("--baseline", metavar="NAME", help="the kernel's baseline that 1.0x is")
    parser.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="(auto: cuda where it is there)"
    )
    parser.add_argument(
        "--dtype", action="append", default=[], metavar="DTYPE", help="only these of the spec; repeatable"
    )
    parser.add_argument(
        "--sandbox", choices=("auto", "require"), default="auto", help="require: refuse where a layer is missing"
    )


def of_problems(parser: argparse._ActionsContainer, *, rule: str | None = "some") -> None:
    parser.add_argument(
        "--own-kernels", choices=("some", "all"), default=rule,
        help="of a PyTorch module's candidates: some of the work is their own (KernelBench's rule), or all of it",
    )  # fmt: skip
    parser.add_argument(
        "--compare", action="append", default=[], choices=("compile", "max-autotune", "none"),
        help="time a PyTorch module's winner against torch.compile too; repeatable (cuda: both, cpu: none)",
    )  # fmt: skip


def protocol(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--protocol", choices=("kernelbench",), help="of a PyTorch module: KernelBench's own numbers beside ours"
    )


def budget(parser: argparse._ActionsContainer, rounds: str = "as before", width: str = "as before") -> None:
    parser.add_argument(
        "--rounds",
        type=number(int, 0),
        metavar="N",
        help=f"at most so many rounds of plan, code, check, time ({rounds})",
    )
    parser.add_argument("--width", type=number(int, 1), metavar="N", help=f"different plans a round ({width})")
    parser.add_argument("--seconds", type=number(float, 0, above=True), metavar="S", help="stop after so much work")
    parser.add_argument("--tokens", type=number(int, 0), metavar="N", help="tokens that models may use")
    parser.add_argument("--money", type=number(float, 0), metavar="USD", help="money that models may cost")


def limits(asked: argparse.Namespace) -> dict[str, Any]:
    """Of `budget`'s options those that were given, by their names in Settings."""
    given = {"rounds": asked.rounds, "width": asked.width, "seconds": asked.seconds, "tokens": asked.tokens,
             "money_usd": asked.money}  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def run_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="run.py",
        allow_abbrev=False,
        description="Makes a kernel faster: agents plan and write, the harness checks and times.",
        usage="run.py --kernel NAME [options]\n       run.py COMMAND ...",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    on_device(parser)
    parser.add_argument("--source", metavar="FILE", help="start from your own file for that kernel's spec")
    parser.add_argument("--draft", metavar="FILE", help="of a PyTorch module: your own first candidate (ModelNew)")
    of_problems(parser)
    parser.add_argument("--run-id", metavar="NAME", help="name the run")
    budget(parser, "5", "1")
    parser.set_defaults(rounds=5, width=1)
    parser.add_argument(
        "--repairs", type=number(int, 0), default=2, metavar="N", help="tries to repair a candidate (2)"
    )
    parser.add_argument(
        "--patience", type=number(int, 1), metavar="N",
        help="rounds without gain to stop at (half of --rounds, at least 3)",
    )  # fmt: skip
    parser.add_argument(
        "--light", type=number(float, 0, above=True), default=0.97, metavar="SHARE",
        help="stop at this share of the speed of light (0.97)",
    )  # fmt: skip
    parser.add_argument(
        "--exact", action="store_true", help="only candidates whose outputs are the baseline's in every bit"
    )
    parser.add_argument(
        "--tune-seconds", type=number(float, 0), metavar="S", help="search of open integers, each (cuda 8, cpu 4)"
    )
    parser.add_argument("--approve", choices=("plans", "candidates"), help="ask a person before going on")
    agents = parser.add_argument_group("agents")
    agents.add_argument(
        "--policy", choices=("auto", "rules", "chat", "replay"), default="auto",
        help="who answers for the agents; auto: chat where there are a key and a --model, else rules",
    )  # fmt: skip
    agents.add_argument("--model", metavar="NAME", help="language model of --policy chat (key: OPENAI_API_KEY)")
    for role in ROLES:
        agents.add_argument(f"--policy-{role}", choices=("rules", "chat", "replay"), help=argparse.SUPPRESS)
        agents.add_argument(f"--model-{role}", metavar="NAME", help=argparse.SUPPRESS)
        agents.add_argument(f"--tokens-{role}", type=number(int, 0), help=argparse.SUPPRESS)
        agents.add_argument(f"--money-{role}", type=number(float, 0), help=argparse.SUPPRESS)
    agents.add_argument("--agents", choices=("four", "single"), default="four", help="single: one prompt for all roles")
    agents.add_argument(
        "--interface", choices=("chat", "responses"), default="chat", help="of the model's server (chat)"
    )
    agents.add_argument(
        "--when-spent", choices=("rules", "pause"), default="rules",
        help="once tokens or money are spent: rules answer from then on, or the run pauses",
    )  # fmt: skip
    agents.add_argument("--prices", metavar="FILE", help="your own table of what models cost")
    agents.add_argument("--transcript", metavar="FILE", help="recorded answers for --policy replay")
    agents.description = (
        f"--policy, --model, --tokens and --money also for one role: --model-coder ... ({', '.join(ROLES)})"
    )
    common(parser)
    on_end(parser)
    parser.set_defaults(go=run)
    return parser


def on_end(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-live", action="store_true", help="plain lines instead of the live display")
    parser.add_argument(
        "--on-end", metavar="COMMAND|URL", default=os.environ.get("ASTROLABE_ON_END", ""),
        help="tell this once the run has ended, paused or failed: a command gets the record as JSON on its standard input, "
        "a URL by POST; also ASTROLABE_ON_END",
    )  # fmt: skip


@contextmanager
def told(asked: argparse.Namespace, run: Run) -> Iterator[None]:
    """Tells --on-end of a failure, too."""
    from graph import hooks

    if asked.on_end:
        hooks.checked(asked.on_end)
    try:
        yield
    except Exception as error:
        if asked.on_end and (failed := hooks.tell(asked.on_end, run, "failed", " ".join(str(error).split()))):
            print(failed, file=sys.stderr)
        raise


def run(asked: argparse.Namespace) -> int:
    from graph import checkpoints
    from graph.choices import choose
    from graph.runs import Run
    from graph.session import new_record

    if asked.checkpointer:
        checkpoints.check_url(asked.checkpointer)
    choice = choose(asked)
    record = new_record(
        choice.settings,
        kernel=choice.kernel.spec.name,
        summary=choice.kernel.spec.summary,
        folder=choice.kernel.folder,
        checkpointer=asked.checkpointer,
    )
    made = Run(asked.runs_dir, record.run_id)
    made.reserve()
    with told(asked, made), front(asked, choice.settings.why) as shown:
        ending = door(asked).start(record, choice.source, shown, asker(), choice.draft)
    return close(ending, asked)


def resume_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="run.py resume", allow_abbrev=False, description="Go on with a run from its last checkpoint.")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument(
        "--answer", metavar="yes|no|@FILE", help="the answer that a paused run waits for; @FILE: an edit"
    )
    changes = parser.add_argument_group("for the rest of the run")
    budget(changes)
    changes.add_argument("--policy", choices=("rules", "chat", "replay"), help="who answers for all roles from here on")
    changes.add_argument("--model", metavar="NAME", help="language model for all roles from here on")
    common(parser)
    on_end(parser)
    parser.set_defaults(go=resume)
    return parser


def resume(asked: argparse.Namespace) -> int:
    from graph.asking import from_option
    from graph.runs import Run

    begun = Run.find(asked.runs_dir, asked.run)
    answer = from_option(asked.answer) if asked.answer is not None else None
    changes = limits(asked)
    if asked.policy:
        changes["policy"] = dict.fromkeys(ROLES, asked.policy)
    if asked.model:
        changes["models"] = dict.fromkeys(ROLES, asked.model)
    change = (lambda settings: settings.model_copy(update=changes)) if changes else None
    with told(asked, begun), front(asked, ()) as shown:
        ending = door(asked).resume(asked.run, shown, asker(), answer, change)
    return close(ending, asked)


def fork_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="run.py fork", allow_abbrev=False, description="A new run from a checkpoint of another.")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument(
        "--checkpoint", required=True, metavar="ID", help="as `history RUN` lists it; any unique part of it"
    )
    parser.add_argument("--run-id", metavar="NAME", help="name the new run")
    budget(parser)
    common(parser)
    on_end(parser)
    parser.set_defaults(go=fork)
    return parser


def fork(asked: argparse.Namespace) -> int:
    from graph.choices import command
    from graph.runs import Run, new_id, now, valid_id

    origin = Run.find(asked.runs_dir, asked.run).record
    checkpoint = door(asked).checkpoint_id(asked.run, asked.checkpoint)
    name = valid_id(asked.run_id) if asked.run_id else new_id(origin.kernel)
    why = f"forked from {asked.run} at checkpoint {checkpoint}"
    changes = limits(asked) | {
        "run_id": name,
        "why": (*origin.settings.why, why),
        "command": command([checkpoint if word == asked.checkpoint else word for word in asked.words]),
    }
    new = origin.model_copy(
        update={
            "run_id": name,
            "created": now(),
            "settings": origin.settings.model_copy(update=changes),
            "forked_from": f"{asked.run}@{checkpoint}",
        }
    )
    made = Run(asked.runs_dir, name)
    made.reserve()
    with told(asked, made), front(asked, (why,)) as shown:
        ending = door(asked).fork(asked.run, checkpoint, new, shown, asker())
    return close(ending, asked)


def front(asked: argparse.Namespace, why: tuple[str, ...]):
    from graph import live

    asked.starting.cancel()
    if asked.no_live:
        return live.PlainDisplay(sys.stderr if asked.json else sys.stdout, why)
    return live.display(json=asked.json, why=why)


def asker():
    from graph.asking import on_terminal

    return on_terminal


def door(asked: argparse.Namespace, runs_dir: Path | None = None) -> Door:
    from graph.opening import open_context
    from graph.session import Door

    return Door(runs_dir or asked.runs_dir, open_context, getattr(asked, "checkpointer", ""))


def close(ending: Ending, asked: argparse.Namespace) -> int:
    """Print how the run was left; the exit code."""
    result, run = ending.result, ending.run
    out = sys.stderr if asked.json else sys.stdout
    again = run.command("resume")
    if asked.on_end:
        from graph import hooks

        record = result.model_dump(mode="json")
        if failed := hooks.tell(asked.on_end, run, ending.state, ending.message, record):
            print(failed, file=sys.stderr)
    if asked.json:
        print(result.model_dump_json(indent=1, ensure_ascii=True))
    if ending.state == "finished" and result.status == "failed":
        print(result.error, file=sys.stderr)
        return EXIT_USAGE
    if ending.state == "finished":
        from rich.console import Console

        from graph.outputs import best_file
        from harness.report.table import print_result

        print_result(result, Console(file=out, highlight=False))
        print(f"\n{best_file(run, result)}\n{run.folder / 'report.html'}", file=out)
        return 0 if result.improved or result.stop_reason == "speed of light" else EXIT_SAME
    if ending.state == "paused":
        more = " --answer yes|no|@FILE" if ending.message.startswith("waiting for approval") else ""
        print(f"paused: {ending.message}\ngo on with: {again}{more}", file=sys.stderr)
        return EXIT_PAUSED
    print(f"interrupted; what was finished is kept. Go on with: {again}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)  # a node may still be at work in its thread; under sync durability it loses nothing


def runs_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="run.py runs", allow_abbrev=False, description="List the runs, oldest first.")
    parser.add_argument(
        "--sort", choices=("started", "kernel", "status", "speedup"), default="started", help="(started)"
    )
    parser.add_argument("--reverse", action="store_true", help="the last first")
    for name, what in (("kernel", "a kernel"), ("device", "a device"), ("status", "a status"), ("policy", "a policy")):
        parser.add_argument(f"--{name}", metavar=name.upper(), help=f"only those of {what}; * and ? stand for letters")
    common(parser)
    parser.set_defaults(go=runs)
    return parser


def runs(asked: argparse.Namespace) -> int:
    from graph.runs import RunError, every
    from harness.report.result import policy_text
    from harness.report.table import RunLine, print_runs

    lines = []
    for found in every(asked.runs_dir):
        try:
            record, status = found.record, found.status
        except RunError as error:  # one damaged record does not hide the others
            print(error, file=sys.stderr)
            continue
        lines.append(
            RunLine(
                run_id=found.id,
                kernel=record.kernel,
                device=record.settings.device,
                policy=policy_text(record.settings.policy),
                status=status.state,
                round=status.round,
                rounds=record.settings.rounds,
                speedup=status.speedup,
                started=f"{record.created:%Y-%m-%d %H:%M}",
            )
        )
    every_one = len(lines)
    for field in ("kernel", "device", "status", "policy"):
        if pattern := getattr(asked, field):
            lines = [line for line in lines if fnmatch.fnmatchcase(getattr(line, field), pattern)]
    if asked.sort != "started":  # as `every` has them; a run without a speedup comes before those with one
        lines.sort(key=lambda line: getattr(line, asked.sort) or (0.0 if asked.sort == "speedup" else ""))
    if asked.reverse:
        lines.reverse()
    if asked.json:
        print(json.dumps([vars(line) for line in lines], indent=1))
    elif not lines:
        print(f"none of the {every_one} runs in {asked.runs_dir}" if every_one else f"{asked.runs_dir} holds no run")
    else:
        from rich.console import Console

        print_runs(lines, Console(highlight=False))
    return 0


def show_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="run.py show", allow_abbrev=False, description="A run's attempts.")
    parser.add_argument("run", metavar="RUN")
    common(parser)
    parser.set_defaults(go=show)
    return parser


def show(asked: argparse.Namespace) -> int:
    run = found(asked)
    result = door(asked).result(run)
    if asked.json:
        print(result.model_dump_json(indent=1, ensure_ascii=True))
        return 0
    from rich.console import Console

    from harness.report.table import print_attempts

    print_attempts(result, Console(highlight=False))
    if result.status not in ("finished", "running"):
        print(f"go on with: {run.command('resume')}")
    return 0


def compare_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="run.py compare", allow_abbrev=False,
        description="Two runs, or two files of results (result.json, or what `evaluate --json` printed), side by side.",
    )  # fmt: skip
    parser.add_argument("first", metavar="RUN|FILE")
    parser.add_argument("second", metavar="RUN|FILE")
    parser.add_argument("--output", type=Path, metavar="FILE", help="a picture as well: .svg or .png")
    common(parser)
    parser.set_defaults(go=compare)
    return parser


def compare(asked: argparse.Namespace) -> int:
    from graph import compare, draw
    from graph.runs import Run
    from harness.report import plot, table

    def of_run(name: str):
        return door(asked).result(Run.find(asked.runs_dir, name))

    both = compare.compare(*(compare.find(name, of_run) for name in (asked.first, asked.second)))
    first, second = both.first.name, both.second.name
    if asked.output:
        rows = [(f"{pair.first.label} {pair.first.dtype} {pair.first.cache}", pair.ratio) for pair in both.pairs]
        title = f"{both.first.kernel}: {second} over {first}"
        draw.save(plot.forest(rows, title, f"{first} is faster", f"{second} is faster"), asked.output)
    if asked.json:
        print(json.dumps(both.as_json(), indent=1))
        return 0
    from rich.console import Console

    shown = [(pair.first, pair.second, pair.ratio) for pair in both.pairs]
    table.print_pairs(shown, first, second, both.overall, both.notes, Console(highlight=False))
    if asked.output:
        print(asked.output)
    return 0


def found(asked: argparse.Namespace) -> Run:
    from graph.runs import Run

    return Run.find(asked.runs_dir, asked.run)


def history_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="run.py history", allow_abbrev=False, description="A run's checkpoints, oldest first.")
    parser.add_argument("run", metavar="RUN")
    common(parser)
    parser.set_defaults(go=history)
    return parser


def history(asked: argparse.Namespace) -> int:
    rows = [
        {
            "checkpoint": snapshot.config["configurable"]["checkpoint_id"],
            "step": (snapshot.metadata or {}).get("step"),
            "created": snapshot.created_at,
            "next": list(snapshot.next),
            "round": snapshot.values.get("round", 0),
            "attempts": len(snapshot.values.get("attempts", ())),
            "incumbent": snapshot.values["incumbent"].candidate if "incumbent" in snapshot.values else "",
        }
        for snapshot in reversed(door(asked).history(found(asked)))
    ]
    if asked.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(f"{'checkpoint':<36}  {'created':<19}  round  attempts  incumbent  next")
    for row in rows:
        created = (row["created"] or "")[:19].replace("T", " ")
        following = ", ".join(row["next"]).replace("__start__", "start") or "the end"
        print(
            f"{row['checkpoint']:<36}  {created:<19}  {row['round']:>5}  {row['attempts']:>8}  "
            f"{row['incumbent'][:9]:<9}  {following}"
        )
    return 0


def graph_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="run.py graph", allow_abbrev=False, description="Draw the graph; with RUN, the path that it took."
    )
    parser.add_argument("run", metavar="RUN", nargs="?")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=".svg, .png or .mmd (without: Mermaid on the terminal)"
    )
    common(parser, json_too=False)
    parser.set_defaults(go=graph)
    return parser


def graph(asked: argparse.Namespace) -> int:
    from graph import draw
    from graph.workflow import build

    compiled = build()
    counts = taken = None
    if asked.run:
        counts, taken = draw_facts(asked)
    if asked.output is None:
        print(compiled.get_graph().draw_mermaid(), end="")
        return 0
    draw.write(compiled, asked.output, counts, taken)
    print(asked.output)
    return 0


def draw_facts(asked: argparse.Namespace):
    from graph import draw

    snapshots = door(asked).history(found(asked))
    visits = snapshots[0].values["spent"].nodes if snapshots and "spent" in snapshots[0].values else {}
    counts = {name: (visit.count, visit.seconds) for name, visit in visits.items()}
    return counts, draw.taken_edges(draw.path_of(snapshots))


def evaluate_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="run.py evaluate", allow_abbrev=False,
        description="The verdict on one file, without any agent. Exit code 0 where it PASSED, 3 where it did not.",
    )  # fmt: skip
    on_device(parser, required=False)
    of_problems(parser, rule=None)
    protocol(parser)
    parser.add_argument("file", metavar="FILE", nargs="?", help="the source; without, --run's best")
    parser.add_argument("--run", metavar="RUN", help="kernel, device, baseline and best file of that run")
    parser.add_argument(
        "--axis", action="append", default=[], metavar="NAME=SIZES",
        help="sweep an axis instead of the spec's workloads: tokens=1:4096:x2, tokens=64:512:64 or tokens=1,7,33; repeatable "
        "for the sizes of others",
    )  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE", help="with --axis: time, bandwidth, speedup; .svg or .png")
    common(parser)
    parser.set_defaults(go=evaluate)
    return parser


def evaluate(asked: argparse.Namespace) -> int:
    from graph import draw, one_file, sweep
    from graph.live import Display, PlainDisplay

    if asked.plot and not asked.axis:
        return _said("--plot draws a sweep: give --axis too")
    what = one_file.of_run(door(asked), asked) if asked.run else one_file.of_file(asked)
    swept = sweep.sweep(what.kernel, what.device, asked.axis, asked.dtype) if asked.axis else None
    asked.starting.cancel()
    silent = asked.json and not sys.stderr.isatty()
    with Display() if silent else PlainDisplay(sys.stderr) as shown:
        said = one_file.evaluate(
            swept.kernel if swept else what.kernel, what.device, what.source, what.baseline,
            dtypes=(swept.dtype,) if swept else what.dtypes, sandbox=asked.sandbox,
            own_kernels=what.own_kernels, compare=what.compare, protocol=bool(asked.protocol),
            say=lambda line: shown.say("harness", line),
        )  # fmt: skip
    verdict, name = said.verdict, what.baseline[0]
    if asked.plot:
        draw.save(sweep.picture(swept, verdict, name, what.name), asked.plot)
    if asked.json:
        comparison = verdict.suite.comparison if verdict.suite else None
        record = {"file": what.name, "baseline": name, "comparison": comparison, "notices": said.notices}
        if said.kernelbench is not None:
            record["kernelbench"] = said.kernelbench.model_dump(mode="json")
        print(json.dumps(record | verdict.model_dump(mode="json"), indent=1))
    else:
        print_verdict(verdict, name, said.notices)
        if said.kernelbench is not None:
            print_kernelbench(said.kernelbench, verdict)
        if asked.plot:
            print(asked.plot)
    return 0 if verdict.passed else EXIT_SAME


def print_kernelbench(found, verdict) -> None:
    from harness.protocol_kernelbench import disagreement

    time = f", {found.runtime:g} ms (eager {found.ref_runtime:g} ms)" if found.runtime > 0 else ""
    print(f"KernelBench: compiled {found.compiled}, correct {found.correctness}{time}")
    if differs := disagreement(found, verdict.outcome, verdict.reason, verdict.degenerate):
        print(f"the two verdicts differ: {differs}")


def print_verdict(verdict, baseline: str, notices: tuple[str, ...]) -> None:
    from rich.console import Console

    from harness.report.result import WorkloadRow
    from harness.report.table import workloads_table
    from harness.report.words import interval

    console = Console(highlight=False)
    if verdict.timings:
        console.print(workloads_table([WorkloadRow.of(t) for t in verdict.timings], f"against {baseline}"))
    words = f"{verdict.outcome}: {verdict.reason}" if verdict.reason else str(verdict.outcome)
    if verdict.suite:
        words += f", {verdict.suite.comparison} {interval(verdict.suite.speedup)}"
    console.print(words, markup=False)
    for notice in notices:
        console.print(f"notice: {notice}", markup=False)
    for mode, suite in verdict.against.items():
        console.print(f"against torch.compile ({mode}): {suite.comparison} {interval(suite.speedup)}", markup=False)
    if verdict.degenerate:
        console.print(f"degenerate problem: {', '.join(verdict.degenerate)} passes KernelBench's check", markup=False)
    for note in verdict.notes:
        console.print(f"note: {note}", markup=False)
    for warning in verdict.warnings:
        console.print(f"warning: {warning}", markup=False)


def kernels_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="run.py kernels", allow_abbrev=False, description="List the kernels of the catalog.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(go=kernels)
    return parser


def kernels(asked: argparse.Namespace) -> int:
    from kernels import catalog

    specs = {name: catalog.load(name).spec for name in catalog.names()}
    if asked.json:
        print(json.dumps({name: spec.model_dump(mode="json") for name, spec in specs.items()}, indent=1))
        return 0
    width = max(map(len, specs), default=0)
    for name, spec in specs.items():
        print(f"{name:<{width}}  {spec.summary}")
    return 0


def export_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="run.py export", allow_abbrev=False,
        description="A package that builds a run's best source and registers it as a torch operator.",
    )  # fmt: skip
    parser.add_argument("run", metavar="RUN")
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="a new or empty folder (default: export in the run's own)"
    )
    parser.add_argument(
        "--samples", type=Path, metavar="FILE", help="only this: every sample of the best file's timings, as CSV"
    )
    common(parser, json_too=False)
    parser.set_defaults(go=export)
    return parser


def export(asked: argparse.Namespace) -> int:
    from harness import dropin
    from kernels import catalog

    run = found(asked)
    result = door(asked).result(run)
    if asked.samples:
        from graph import outputs

        outputs.write_samples(run, result, asked.samples)
        print(asked.samples)
        return 0
    if result.problem:
        return _said(f"{run.id} is about a PyTorch module, and its best is one already: {run.folder / 'best.py'}")
    to = asked.to or run.folder / "export"
    source = run.source(result.best)
    kernel = catalog.load(run.record.settings.kernel)
    for path in dropin.export(kernel, source, result.model_dump(mode="json"), to, result.device):
        print(path)
    if not result.improved:
        print("run.py: no improvement was found; this is the baseline as an operator", file=sys.stderr)
    return 0


def campaign_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="run.py campaign", allow_abbrev=False,
        description="Every problem of a suite as a run of its own. The same command goes on where it was killed.",
    )  # fmt: skip
    parser.add_argument(
        "--suite",
        required=True,
        metavar="NAME|PATH",
        help="starter, or a checkout of KernelBench (PATH/level1/23_Softmax.py)",
    )
    parser.add_argument("--levels", metavar="1,2,3", default="", help="only these")
    parser.add_argument("--name", metavar="NAME", help="name the campaign")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="where it is kept (runs)")
    parser.add_argument("--no-live", action="store_true", help="plain lines instead of the live table")
    parser.add_argument("--json", action="store_true", help="summary.json on standard output, nothing else there")
    options = parser.add_argument_group("for every problem, as in `run.py --kernel FILE.py`")
    of_problems(options)
    protocol(options)
    budget(options)
    options.add_argument("--repairs", type=number(int, 0), metavar="N")
    options.add_argument("--tune-seconds", type=number(float, 0), metavar="S")
    options.add_argument("--policy", choices=("auto", "rules", "chat"), default="auto")
    options.add_argument("--model", metavar="NAME")
    options.add_argument("--agents", choices=("four", "single"))
    options.add_argument("--sandbox", choices=("auto", "require"))
    parser.set_defaults(go=campaign)
    return parser


def campaign_words(asked: argparse.Namespace) -> list[str]:
    """The options that every problem's run gets."""
    words: list[str] = []
    for option in (
        "own-kernels", "compare", "rounds", "width", "seconds", "tokens", "money", "repairs", "tune-seconds", "policy",
        "model", "agents", "sandbox",
    ):  # fmt: skip
        value = getattr(asked, option.replace("-", "_"))
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is None else [f"--{option}", str(one)]
    return words


def campaign(asked: argparse.Namespace) -> int:
    from graph import campaign as campaigns
    from graph.campaign_live import Board, summary
    from graph.choices import choose
    from graph.runs import RunError
    from harness import device
    from kernels import suites

    on, _why = device.choose(asked.device)
    try:
        levels = tuple(int(level) for level in asked.levels.split(",") if level)
    except ValueError:
        raise RunError(f"--levels {asked.levels!r} is no list of numbers such as 1,2") from None
    problems = suites.problems(asked.suite, levels)
    words = [*campaign_words(asked), "--device", on]
    theirs = campaigns.by_kernelbench(on) if asked.protocol else None
    name = asked.name or f"{Path(asked.suite).resolve().name}-{on}"
    found = campaigns.Campaign(asked.runs_dir, name)
    found.begin(campaigns.asked_for(name, str(asked.suite), on, words, problems))

    def chosen(path: Path, run_id: str):
        each = ["--kernel", str(path), *words, "--run-id", run_id]
        settings = run_parser().parse_args(each)
        settings.words = each
        return choose(settings)

    out = sys.stderr if asked.json else sys.stdout
    with found.lock():
        board = Board(len(problems), found.entries(), out, live=not asked.no_live)
        with board.shown():
            whole = found.work(
                campaigns.Plan(chosen, lambda runs: door(asked, runs), lambda _question, _store: None, theirs), board
            )
    if not whole:
        print("interrupted; give the same command to go on", file=sys.stderr)
        sys.stderr.flush()
        os._exit(EXIT_INTERRUPTED)  # a node may still be at work in its thread; under sync durability it loses nothing
    if asked.json:
        print((found.folder / "summary.json").read_text(), end="")
    print(f"{summary(found.entries())}\n{board.so_far()}\n{found.folder / 'report.html'}", file=out)
    return 0


def model_parser() -> argparse.ArgumentParser:
    from harness.model import Shape

    parser = Parser(
        prog="run.py model", allow_abbrev=False,
        description="A decode and a prefill step of a transformer, with the baselines' kernels and with the best of these "
        "runs in their places: the gain that a model sees, and the share of the step that the kernels had.",
    )  # fmt: skip
    parser.add_argument("runs", nargs="+", metavar="RUN", help="one of each kernel")
    sizes = {
        "layers": "layers", "hidden": "width of the residual stream", "ffn": "width of the MLP", "heads": "attention heads",
        "head_dim": "width of a head", "batch": "sequences of the decode step", "context": "tokens in each one's cache",
        "prefill": "new tokens of the prefill step, 0 for none",
    }  # fmt: skip
    for name, what in sizes.items():
        least = 0 if name == "prefill" else 2 if name == "context" else 1
        usual = Shape.model_fields[name].default
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=number(int, least), default=usual, metavar="N", help=f"{what} ({usual})"
        )
    parser.add_argument("--dtype", default="", help="(the first that the kernels have)")
    parser.add_argument("--samples", type=number(int, 8), default=30, metavar="N", help="pairs of each variant (30)")
    common(parser)
    parser.set_defaults(go=in_model)
    return parser


def in_model(asked: argparse.Namespace) -> int:
    from graph import in_model
    from graph.runs import Run
    from harness.model import Shape
    from harness.report.words import model_step

    opened = door(asked)
    runs = [Run.find(asked.runs_dir, name) for name in asked.runs]
    shape = Shape(**{name: getattr(asked, name) for name in Shape.model_fields})
    gain = in_model.measure(
        [(run, opened.result(run)) for run in runs], shape, dtype=asked.dtype, samples=asked.samples
    )
    if asked.json:
        print(gain.model_dump_json(indent=1))
        return 0
    how = "captured" if gain.captured else "run eagerly"
    print(f"{', '.join(gain.kernels)} in {shape.layers} layers of {shape.hidden}, {gain.dtype}, {how}")
    for step in gain.steps:
        print(f"{step.name}: {step.comparison} {model_step(step)}")
    return 0


def on_graph(parser: argparse.ArgumentParser, fanout: list[int]) -> None:
    parser.add_argument(
        "--graph", default="small", metavar="NAME|FOLDER", help="synthetic, or a graph's folder (small)"
    )
    parser.add_argument(
        "--fanout", type=int, nargs="+", default=fanout, metavar="N",
        help=f"neighbours of each hop, the seeds' first ({' '.join(map(str, fanout))})",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=number(int, 1), default=1024, metavar="N", help="seeds a batch and process (1024)"
    )
    parser.add_argument("--model", choices=("sage", "gat", "gin", "sage-ri"), default="sage")
    parser.add_argument("--hidden", type=number(int, 8), metavar="N", help="hidden width (256; 64 on a CPU)")
    parser.add_argument("--seed", type=number(int, 0), default=0)
    parser.add_argument(
        "--threads", type=number(int, 0), default=0, metavar="N", help="that prepare batches (all cores)"
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="(minibatch/<graph>-<model>.pt in the runs' folder)"
    )
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="the record as JSON on standard output, nothing else there")


def epoch_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="run.py epoch", allow_abbrev=False, description="Train a graph neural network on sampled mini-batches."
    )
    on_graph(parser, [15, 10, 5])
    parser.add_argument("--epochs", type=number(int, 1), default=5, metavar="N", help="(5)")
    parser.add_argument("--lr", type=number(float, 0, above=True), default=0.003, help="Adam's learning rate (0.003)")
    parser.add_argument("--gpus", type=number(int, 0), default=0, metavar="N", help="train on so many GPUs")
    parser.add_argument("--ranks", type=number(int, 1), default=1, metavar="N", help="processes on the CPU, over gloo")
    parser.add_argument(
        "--features", choices=("hbm", "host"), help="where features are kept (hbm where there is a GPU)"
    )
    parser.add_argument(
        "--rung",
        choices=("salient", "gpu-plain", "gpu", "gpu-fused", "gpu-graph", "gpu-compiled"),
        help="how batches are made and trained",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument(
        "--with", dest="swapped", action="append", default=[], metavar="RUN",
        help="say whether epochs become faster with the best of this run in its kernel's place; repeatable, trains nothing",
    )  # fmt: skip
    parser.set_defaults(go=epoch)
    return parser


def epoch(asked: argparse.Namespace) -> int:
    from minibatch import commands

    if not asked.swapped:
        return commands.epoch(asked)
    from graph.runs import Run

    asked.checkpointer, sources = "", {}
    for name in asked.swapped:
        of = Run.find(asked.runs_dir, name)
        result = door(asked).result(of)
        sources[of.record.kernel] = (result.device, of.store.get(result.best))
    return commands.with_sources(asked, sources)


def infer_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="run.py infer", allow_abbrev=False,
        description="Test accuracy of a model that `epoch` trained, from sampled and from all neighbours.",
    )  # fmt: skip
    on_graph(parser, [20, 20, 20])
    parser.set_defaults(go=infer)
    return parser


def infer(asked: argparse.Namespace) -> int:
    from minibatch import commands

    return commands.infer(asked)


COMMANDS = {
    "campaign": campaign_parser,
    "resume": resume_parser,
    "runs": runs_parser,
    "show": show_parser,
    "compare": compare_parser,
    "history": history_parser,
    "fork": fork_parser,
    "graph": graph_parser,
    "evaluate": evaluate_parser,
    "export": export_parser,
    "kernels": kernels_parser,
    "model": model_parser,
    "epoch": epoch_parser,
    "infer": infer_parser,
}


def parse(words: list[str]) -> argparse.Namespace:
    if words and not words[0].startswith("-"):
        if words[0] not in COMMANDS:
            near = difflib.get_close_matches(words[0], COMMANDS, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(COMMANDS)}"
            raise SystemExit(_said(f"there is no command {words[0]!r}; {hint}"))
        asked = COMMANDS[words[0]]().parse_args(words[1:])
    else:
        asked = run_parser().parse_args(words)
    asked.words = words
    return asked


_PLAIN = {"×": "x", "–": "-", "—": "-", "µ": "u", "·": "-", "…": "...", "─": "-", "²": "2"}


def _readable(error: UnicodeError) -> tuple[str, int]:
    """What an output's encoding lacks, in plain letters."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _said(sentence: str) -> int:
    print(f"run.py: {sentence}", file=sys.stderr)
    return EXIT_USAGE


def main(words: list[str] | None = None) -> int:
    codecs.register_error("readable", _readable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="readable")
    asked = parse(sys.argv[1:] if words is None else words)
    asked.starting = threading.Timer(STARTING_S, _say_starting)
    asked.starting.daemon = True
    asked.starting.start()
    try:
        return asked.go(asked)
    except KeyboardInterrupt:
        print("run.py: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("graph", "nodes", "minibatch", "harness", "kernels"):
            raise
        return _said(
            f"{error.name} is not installed for {sys.executable}: `python3 bootstrap.py` sets up .venv, "
            "then start this with .venv/bin/python"
        )
    except Exception as error:
        kind = type(error)
        if f"{kind.__module__}.{kind.__qualname__}" in USER_ERRORS:
            return _said(" ".join(str(error).split()))
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _said(f"the disk is full ({error.filename or 'no file named'}): free some space and try again")
        raise
    finally:
        asked.starting.cancel()


def _say_starting() -> None:
    """To a person only: a script may count on one sentence on standard error."""
    if sys.stderr.isatty():
        print("run.py: still starting: loading takes a while on a cold or a busy machine", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
