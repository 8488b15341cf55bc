"""Options that several commands share, and the exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

EXIT_FAILURE, EXIT_USAGE, EXIT_SAME, EXIT_PAUSED, EXIT_INTERRUPTED = 1, 2, 3, 75, 130
ROLES = ("tester", "drafter", "profiler", "planner", "coder", "reviewer")
"""As nodes.roles has them, which takes a second to import."""


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
        "--kernel", required=required, metavar="NAME|FOLDER|FILE",
        help="a kernel of the catalog, a folder, a PyTorch module in KernelBench's form (.py), or a definition of "
        "flashinfer-bench or SOL-ExecBench (.json)",
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


def on_engine(parser: argparse._ActionsContainer, *, given: str | None = "process") -> None:
    parser.add_argument(
        "--engine", metavar="NAME", default=given,
        help="where candidates are built, checked and timed: process (here), dask (a worker for each GPU of this machine), "
        "dask:N, dask:ADDRESS of a scheduler (docs/cluster.md)",
    )  # fmt: skip
    parser.add_argument("--device-model", metavar="NAME", default="", help="of a cluster's kinds of devices this one")
    parser.add_argument("--tls", metavar="DIR", default="", help="certificate and key of the cluster at ADDRESS")
    parser.add_argument("--insecure", action="store_true", help="no TLS although ADDRESS is beyond this machine")


def of_problems(parser: argparse._ActionsContainer, *, rule: str | None = "some") -> None:
    parser.add_argument(
        "--own-kernels", choices=("some", "all"), default=rule,
        help="of a PyTorch module's candidates: some of the work is their own (KernelBench's rule), or all of it",
    )  # fmt: skip
    parser.add_argument(
        "--compare", action="append", default=[], choices=("compile", "max-autotune", "none"),
        help="time a PyTorch module's winner against torch.compile too; repeatable (cuda: both, cpu: none)",
    )  # fmt: skip


def numerics(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--numerics", choices=("eager", "fp32"), default="eager",
        help="of a PyTorch module's draft by rules on a GPU: rounded where eager torch rounds, TF32 in convolutions, or without TF32 (eager)",
    )  # fmt: skip


BOTH = ("both", "kernelbench")
"""`--protocol` that asks for KernelBench's own verdict, too."""


def protocol(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--protocol", choices=("both", "ours", "kernelbench"),
        help="of a PyTorch module: KernelBench's own verdict and times beside ours (both; kernelbench says the same), or ours alone "
        "(a campaign on a GPU of this machine: both, else ours)",
    )  # fmt: skip


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


def lock_clocks(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--lock-clocks", nargs="?", const=0, type=number(int, 1), metavar="MHZ",
        help="hold the GPU's clocks meanwhile, where you may (root); without MHZ at its default application clock",
    )  # fmt: skip


def on_end(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-live", action="store_true", help="plain lines instead of the live display")
    parser.add_argument(
        "--on-end", metavar="COMMAND|URL", default=os.environ.get("ASTROLABE_ON_END", ""),
        help="tell this once the run has ended, paused or failed: a command gets the record as JSON on its standard input, "
        "a URL by POST; also ASTROLABE_ON_END",
    )  # fmt: skip


def usage_error(sentence: str) -> int:
    print(f"run.py: {sentence}", file=sys.stderr)
    return EXIT_USAGE
