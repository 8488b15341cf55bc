"""`run.py --kernel NAME`: a run from its start."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from graph.commands.opened import asker, close, door, engine, front, told
from graph.commands.options import (
    ROLES,
    Parser,
    budget,
    common,
    lock_clocks,
    number,
    numerics,
    of_problems,
    on_device,
    on_end,
    on_engine,
)

if TYPE_CHECKING:
    from graph.session import Ending
    from harness.engines import Engine

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
  scheduler, worker     lend machines to `--engine dask` (docs/cluster.md)
  export RUN            the best source as a package with a torch operator
  recheck EXPORT        judge such a package again, after an update of driver or torch
  model RUN...          what a model's step gains by the best of runs
  kernels               list the kernels
  doctor                what this machine has, and what does not work without the rest
  mcp                   compile, check, time, profile, submit for a coding agent (docs/mcp.md)
  memory                what runs learned: list, export, forget
  epoch                 train a graph neural network on mini-batches (docs/minibatch.md)
  infer                 its accuracy from sampled and from all neighbours

exit codes:
  0   improved, or already at the limit      3    finished without improvement
  1   our own failure                        75   paused: an answer or an approval is missing; resume goes on
  2   bad usage, bad input, a full disk      130  interrupted; resume goes on
"""


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py",
        allow_abbrev=False,
        description="Makes a kernel faster: agents plan and write, the harness checks and times.",
        usage="run.py --kernel NAME [options]\n       run.py COMMAND ...",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    on_device(made)
    on_engine(made)
    made.add_argument("--source", metavar="FILE", help="start from your own file for that kernel's spec")
    made.add_argument("--draft", metavar="FILE", help="of a PyTorch module: your own first candidate (ModelNew)")
    of_problems(made)
    numerics(made)
    made.add_argument("--run-id", metavar="NAME", help="name the run")
    budget(made, "5", "1")
    made.set_defaults(rounds=5, width=1)
    made.add_argument("--repairs", type=number(int, 0), default=2, metavar="N", help="tries to repair a candidate (2)")
    made.add_argument(
        "--patience", type=number(int, 1), metavar="N",
        help="rounds without gain to stop at (half of --rounds, at least 3)",
    )  # fmt: skip
    made.add_argument(
        "--light", type=number(float, 0, above=True), default=0.97, metavar="SHARE",
        help="stop at this share of the speed of light (0.97)",
    )  # fmt: skip
    made.add_argument(
        "--exact", action="store_true", help="only candidates whose outputs are the baseline's in every bit"
    )
    made.add_argument(
        "--tune-seconds", type=number(float, 0), metavar="S", help="search of open integers, each (cuda 8, cpu 4)"
    )
    made.add_argument(
        "--memory", choices=("on", "off"), default="on",
        help="off: learn nothing from earlier runs and leave nothing to later ones, for clean experiments (on)",
    )  # fmt: skip
    made.add_argument("--approve", choices=("plans", "candidates"), help="ask a person before going on")
    agents = made.add_argument_group("agents")
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
        agents.add_argument(f"--answer-tokens-{role}", type=number(int, 1), help=argparse.SUPPRESS)
        agents.add_argument(f"--effort-{role}", metavar="LEVEL", help=argparse.SUPPRESS)
    agents.add_argument(
        "--review", action="store_true",
        help="a reviewer must agree before a plan is coded and before a candidate is built; --model-reviewer asks for it too",
    )  # fmt: skip
    agents.add_argument("--agents", choices=("four", "single"), default="four", help="single: one prompt for all roles")
    agents.add_argument(
        "--coder", choices=("tools", "oneshot"), default="tools",
        help="of a model: it compiles, checks, times and profiles in turns, where its server knows tools (tools); or it "
        "answers once with the whole source",
    )  # fmt: skip
    agents.add_argument(
        "--turns", type=number(int, 1), default=16, metavar="N", help="answers of a coder with tools, for one plan (16)"
    )
    agents.add_argument(
        "--tool-seconds", type=number(float, 0, above=True), metavar="S",
        help="its tools may take so long, for one plan (cuda 240, cpu 120)",
    )  # fmt: skip
    agents.add_argument(
        "--interface", choices=("chat", "responses"), default="chat", help="of the model's server (chat)"
    )
    agents.add_argument(
        "--answer-tokens", type=number(int, 1), metavar="N",
        help="most tokens of one answer, reasoning included (6,000 to 16,000 by role); doubled where one is cut off",
    )  # fmt: skip
    agents.add_argument("--effort", metavar="LEVEL", help="of a reasoning model, in its server's words: low, high, ...")
    agents.add_argument(
        "--idle-seconds",
        type=number(float, 0, above=True),
        metavar="S",
        help="of a model server's silence at most (600)",
    )
    agents.add_argument(
        "--answer-seconds", type=number(float, 0, above=True), metavar="S", help="of one answer at most (3600)"
    )
    agents.add_argument(
        "--when-spent", choices=("rules", "pause"), default="rules",
        help="once tokens or money are spent: rules answer from then on, or the run pauses",
    )  # fmt: skip
    agents.add_argument("--prices", metavar="FILE", help="your own table of what models cost")
    agents.add_argument("--transcript", metavar="FILE", help="recorded answers for --policy replay")
    agents.description = (
        "--policy, --model, --tokens, --money, --answer-tokens and --effort also for one role: "
        f"--model-coder ... ({', '.join(ROLES)}); --model-coder A,B: on a plateau the next one writes"
    )
    common(made)
    on_end(made)
    lock_clocks(made)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph import checkpoints

    if asked.checkpointer:
        checkpoints.check_url(asked.checkpointer)
    with engine(asked) as at_work:
        ending = _run(asked, at_work)
    return close(ending, asked)


def _run(asked: argparse.Namespace, at_work: Engine) -> Ending:
    from graph.choices import choose
    from graph.runs import Run
    from graph.session import new_record
    from harness.clocks import locked

    choice = choose(asked, at_work)
    record = new_record(
        choice.settings,
        kernel=choice.kernel.spec.name,
        summary=choice.kernel.spec.summary,
        folder=choice.kernel.folder,
        checkpointer=asked.checkpointer,
    )
    made = Run(asked.runs_dir, record.run_id)
    with locked(asked.lock_clocks, choice.settings.device, asked.engine):  # before there is a run, where it may not be
        made.reserve()
        with told(asked, made), front(asked, choice.settings.why, at_work) as shown:
            return door(asked, engine=at_work).start(record, choice.source, shown, asker(), choice.draft)
