"""Astrolabe's command line: the commands of graph/commands, and those of the application that they know nothing of."""

from __future__ import annotations

import argparse
import codecs
import difflib
import errno
import importlib
import io
import os
import sys
import threading
from functools import partial
from pathlib import Path

from graph.commands.opened import door
from graph.commands.options import EXIT_FAILURE, EXIT_INTERRUPTED, Parser, number, usage_error
from harness.report.inert import inert_streams

STARTING_S = 4.0
"""What is not shown by then says that it is still starting."""

# By name, so that none of their modules is imported for `--help`. Each has one sentence for the user.
USER_ERRORS = {
    "graph.runs.RunError",
    "graph.draw.DrawError",
    "harness.cluster.ClusterError",
    "harness.device.DeviceError",
    "harness.dropin.ExportError",
    "harness.engines.EngineError",
    "harness.rig.MissingTool",
    "harness.store.DamagedStore",
    "kernels.catalog.KernelError",
    "nodes.spans.SpansMissing",
    "minibatch.graphs.GraphError",
    "minibatch.native.NativeError",
}


def whole(least: int, most: int):
    """A whole number in a range."""

    def parse(text: str) -> int:
        value = number(int, least)(text)
        if value > most:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {most:,}")
        return value

    return parse


def model(text: str) -> str:
    if text not in MODELS and ".py:" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(MODELS)} and no FILE.py:CLASS")
    return text


MODELS = ("sage", "gat", "gin", "sage-ri")


def on_graph(parser: argparse.ArgumentParser, fanout: str) -> None:
    parser.add_argument(
        "--graph", default="small", metavar="NAME|FOLDER", help="synthetic, of OGB, or a graph's folder (small)"
    )
    parser.add_argument(
        "--data", type=Path, default=Path("dataset"), metavar="DIR", help="where OGB's data sets are or go (dataset)"
    )
    parser.add_argument(
        "--fanout", type=int, nargs="+", metavar="N", help=f"neighbours of each hop, the seeds' first ({fanout})",
    )  # fmt: skip
    parser.add_argument("--batch", type=whole(1, (1 << 31) - 1), metavar="N", help="seeds a batch and process (1024)")
    parser.add_argument(
        "--model", type=model, metavar="NAME|FILE.py:CLASS",
        help=f"{', '.join(MODELS)}, or a class of your own that PyTorch Geometric's models could be (sage)",
    )  # fmt: skip
    parser.add_argument("--hidden", type=whole(8, 1 << 20), metavar="N", help="hidden width (256; 64 on a CPU)")
    parser.add_argument("--seed", type=whole(0, (1 << 63) - 1), metavar="N", help="(0)")
    parser.add_argument(
        "--threads", type=whole(0, 1024), default=0, metavar="N", help="that prepare batches (all cores)"
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
    on_graph(parser, "15 10 5")
    parser.add_argument("--epochs", type=number(int, 1), default=5, metavar="N", help="(5)")
    parser.add_argument("--lr", type=number(float, 0, above=True), metavar="X", help="Adam's learning rate (0.003)")
    parser.add_argument("--schedule", choices=("constant", "cosine", "plateau"), help="of the learning rate (constant)")
    parser.add_argument(
        "--patience", type=whole(1, 1 << 30), metavar="N", help="end after N epochs without a better validation"
    )
    parser.add_argument(
        "--loss", choices=("classes", "multi-label", "regression"), help="what labels are (what they look like)"
    )
    parser.add_argument("--gpus", type=number(int, 0), default=0, metavar="N", help="train on so many GPUs")
    parser.add_argument("--ranks", type=number(int, 1), default=1, metavar="N", help="processes on the CPU, over gloo")
    parser.add_argument(
        "--features",
        choices=("hbm", "host"),
        help="where features are kept (on the device where they fit, else in host memory)",
    )
    parser.add_argument(
        "--cache-gib",
        type=number(float, 0),
        metavar="N",
        help="of hot rows on the device, with --features host (what is free)",
    )
    parser.add_argument(
        "--rung",
        choices=(
            "pyg",
            "pyg-hbm",
            "salient",
            "gpu-plain",
            "gpu",
            "gpu-fused",
            "gpu-graph",
            "gpu-layers",
        ),
        help="how batches are made and trained",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html", help="of the last epoch: what each stage took and what ran when"
    )
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
    from graph.runs import Run, RunError

    asked.checkpointer, found, sources = "", [], {}
    opened = door(asked)
    for name in asked.swapped:
        of = Run.find(asked.runs_dir, name)
        result = opened.result(of)
        if not result.best:
            raise RunError(f"run {of.id} has no result yet; `run.py resume {of.id}` goes on with it")
        if of.record.kernel in sources:
            raise RunError(f"two of these runs are of {of.record.kernel}; name one")
        found.append(of)
        sources[of.record.kernel] = (result.device, of.store.get(result.best))
    gain = commands.with_sources(asked, sources)
    if len(found) == 1:  # a run's report says what the epoch sees of it alone
        opened.add(found[0], epoch=gain)
    return 0


def infer_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="run.py infer", allow_abbrev=False,
        description="Test accuracy of a model that `epoch` trained, from sampled and from all neighbours.",
    )  # fmt: skip
    on_graph(parser, "20 a layer")
    parser.add_argument("--on", choices=("train", "valid", "test", "all"), default="test", help="ids to infer (test)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the predictions: FILE.npz or FILE.csv")
    parser.set_defaults(go=infer)
    return parser


def infer(asked: argparse.Namespace) -> int:
    from minibatch import commands

    return commands.infer(asked)


def parser_of(name: str) -> argparse.ArgumentParser:
    """Only the module of the command that was asked for is imported."""
    return importlib.import_module(f"graph.commands.{name}").parser()


COMMANDS = {
    name: partial(parser_of, name)
    for name in (
        "campaign", "check", "resume", "runs", "show", "compare", "history", "fork", "graph", "doctor", "evaluate",
        "export",
        "kernels", "mcp", "memory", "recheck", "model", "scheduler", "worker",
    )
} | {"epoch": epoch_parser, "infer": infer_parser}  # fmt: skip


def parse(words: list[str]) -> argparse.Namespace:
    for word in words:
        if not word.isascii() and any("\udc80" <= letter <= "\udcff" for letter in word):
            shown = word.encode(errors="surrogateescape").decode(errors="replace")
            raise SystemExit(usage_error(f"{shown!r} is no UTF-8, which file names must be: rename it"))
    if words and not words[0].startswith("-"):
        if words[0] not in COMMANDS:
            near = difflib.get_close_matches(words[0], COMMANDS, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(COMMANDS)}"
            raise SystemExit(usage_error(f"there is no command {words[0]!r}; {hint}"))
        asked = COMMANDS[words[0]]().parse_args(words[1:])
    else:
        asked = parser_of("run").parse_args(words)
    asked.words = words
    return asked


_PLAIN = {"×": "x", "–": "-", "—": "-", "µ": "u", "·": "-", "…": "...", "─": "-", "²": "2"}


def _readable(error: UnicodeError) -> tuple[str, int]:
    """What an output's encoding lacks, in plain letters."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def main(words: list[str] | None = None) -> int:
    codecs.register_error("readable", _readable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="readable")
    with inert_streams():
        return _go(sys.argv[1:] if words is None else words)


def _go(words: list[str]) -> int:
    asked = parse(words)
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
        return usage_error(
            f"{error.name} is not installed for {sys.executable}: `python3 bootstrap.py` sets up .venv, "
            "then start this with .venv/bin/python"
        )
    except Exception as error:
        kind = type(error)
        if f"{kind.__module__}.{kind.__qualname__}" in USER_ERRORS:
            return usage_error(" ".join(str(error).split()))
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return usage_error(f"the disk is full ({error.filename or 'no file named'}): free some space and try again")
        raise
    finally:
        asked.starting.cancel()


def _say_starting() -> None:
    """To a person only: a script may count on one sentence on standard error."""
    if sys.stderr.isatty():
        print("run.py: still starting: loading takes a while on a cold or a busy machine", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
