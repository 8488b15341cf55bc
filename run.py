"""Astrolabe's command line: the commands of graph/commands, and those of the application that they know nothing of."""

from __future__ import annotations

import codecs
import difflib
import importlib
import io
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

if sys.flags.safe_path:  # python -I, -P or PYTHONSAFEPATH leave a program's own folder out
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from graph.commands.opened import open_service
from graph.commands.options import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_PAUSED, STARTED, Command, usage_error
from harness.options import Options, Parser, parser_for, read
from harness.report.inert import escape_streams
from kernels import extras

if TYPE_CHECKING:
    from minibatch.request import EpochRequest, InferRequest

STARTING_S = 4.0
"""What is not shown by then says that it is still starting."""

# By name, so that none of their modules is imported for `--help`. Each has one sentence for the user.
USER_ERRORS = {
    "graph.runs.RunError",
    "harness.report.svg.DrawError",
    "harness.cluster.ClusterError",
    "harness.device.DeviceError",
    "harness.export.dropin.ExportError",
    "harness.engines.EngineError",
    "harness.judge.session.MissingTool",
    "harness.store.DamagedStore",
    "kernels.catalog.KernelError",
    "nodes.spans.SpansMissing",
    "minibatch.graphs.GraphError",
    "minibatch.native.NativeError",
}


def epoch(request: EpochRequest) -> int:
    from minibatch import commands

    if not request.swapped:
        return commands.epoch(request)
    from graph.runs import RunError, RunFolder

    found, sources, opened = [], {}, open_service(request.runs_dir)
    for name in request.swapped:
        of = RunFolder.find(request.runs_dir, name)
        result = opened.result(of)
        if not result.best:
            raise RunError(f"run {of.id} has no result yet; `run.py resume {of.id}` goes on with it")
        if of.record.kernel in sources:
            raise RunError(f"two of these runs are of {of.record.kernel}; name one")
        found.append(of)
        sources[of.record.kernel] = (result.device, of.store.get(result.best))
    gain = commands.with_sources(request, sources)
    if len(found) == 1:  # a run's report says what the epoch sees of it alone
        opened.add(found[0], epoch=gain)
    return 0


def infer(request: InferRequest) -> int:
    from minibatch import commands

    return commands.infer(request)


COMMANDS = (
    "bring", "campaign", "check", "resume", "runs", "show", "compare", "history", "fork", "graph", "doctor", "evaluate", "export", "kernels", "mcp",
    "memory", "rank", "recheck", "model", "scheduler", "worker", "epoch", "infer",
)  # fmt: skip


def record_of(name: str) -> type[Options]:
    """Only the module of the command that was asked for is imported."""
    if name in ("epoch", "infer"):
        return getattr(importlib.import_module("minibatch.request"), f"{name.title()}Request")
    return getattr(importlib.import_module(f"graph.commands.{name}"), f"{name.title()}Command")


def parser_of(name: str) -> Parser:
    return parser_for(record_of(name), "run.py" if name == "run" else f"run.py {name}")


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        raise SystemExit(usage_error("the working folder is gone: change to one that is there")) from None


def parse(words: list[str]) -> Options:
    for word in (*words, _working_folder(), str(Path(__file__).resolve().parent), os.environ.get("HOME", "")):
        if not word.isascii() and any("\udc80" <= letter <= "\udcff" for letter in word):
            shown = word.encode(errors="surrogateescape").decode(errors="replace")
            raise SystemExit(usage_error(f"{shown!r} is no UTF-8, which file names must be: rename it"))
    if words == ["--version"]:
        from graph.commands.doctor import describe_version

        print(f"Astrolabe {describe_version()}")
        raise SystemExit(0)
    name = words[0] if words and not words[0].startswith("-") else ""
    if name and name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(COMMANDS)}"
        raise SystemExit(usage_error(f"there is no command {name!r}; {hint}"))
    return read(record_of(name or "run"), parser_of(name or "run"), words[1:] if name else words)


_PLAIN = {"×": "x", "–": "-", "—": "-", "µ": "u", "·": "-", "…": "...", "─": "-", "²": "2"}


def _readable(error: UnicodeError) -> tuple[str, int]:
    """What an output's encoding lacks, in plain letters."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def main(words: list[str] | None = None) -> int:
    codecs.register_error("readable", _readable)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started this has closed it (`>&-`)
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115, until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="readable")
    with escape_streams():
        return _go(sys.argv[1:] if words is None else words)


def _go(words: list[str]) -> int:
    STARTED.clear()
    starting = threading.Timer(STARTING_S, _say_starting)
    starting.daemon = True
    try:
        command = parse(words)
        starting.start()
        if isinstance(command, Command):
            return command.go()
        return epoch(cast("EpochRequest", command)) if words[0] == "epoch" else infer(cast("InferRequest", command))
    except KeyboardInterrupt:
        print("run.py: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("graph", "nodes", "minibatch", "harness", "kernels"):
            raise
        if extra := extras.OF_MODULE.get((error.name or "").split(".")[0]):
            return usage_error(f"this needs the package {error.name}; in the checkout: {extras.install(extra)}")
        return usage_error(
            f"{error.name} is not installed for {sys.executable}: `python3 bootstrap.py` sets up .venv, "
            "then start this with .venv/bin/python"
        )
    except Exception as error:
        kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
        if kinds & USER_ERRORS:
            code = usage_error(" ".join(str(error).split()))
            return EXIT_PAUSED if "graph.checkpoints.CheckpointsUnavailable" in kinds else code
        from harness.store import says_disk_is_full

        if says_disk_is_full(error):
            full = getattr(error, "filename2", None) or getattr(error, "filename", None)
            return usage_error(f"the disk is full{f' ({full})' if full else ''}: free some space and try again")
        raise
    finally:
        STARTED.set()
        starting.cancel()


def _say_starting() -> None:
    """To a person only: a script may count on one sentence on standard error."""
    if sys.stderr.isatty() and not STARTED.is_set():
        print("run.py: still starting: loading takes a while on a cold or a busy machine", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
