"""`run.py mcp`: the workbench for any coding agent, over the Model Context Protocol (docs/mcp.md)."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from graph.commands.opened import door
from graph.commands.options import Parser, common, number, on_device
from graph.runs import RunError

if TYPE_CHECKING:
    from graph.serving import Begun, StartArguments

GRACE_S = 3.0
"""After the client has left: time for what is at work to end."""


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py mcp", allow_abbrev=False,
        description="Serve compile, check, time, profile and submit to a coding agent, over the Model Context Protocol.",
    )  # fmt: skip
    on_device(made, required=False)
    made.add_argument("--source", metavar="FILE", help="start from your own file for that kernel's spec")
    made.add_argument("--run", metavar="RUN", help="go on with that run, if it was begun here")
    made.add_argument(
        "--run-id", metavar="NAME", help="name the run that will be begun; one of that name is gone on with"
    )
    made.add_argument("--rounds", type=number(int, 1), default=20, metavar="N", help="at most so many submissions (20)")
    made.add_argument(
        "--seconds", type=number(float, 0, above=True), metavar="S", help="stop after so much work of the gates"
    )
    made.add_argument(
        "--turns", type=number(int, 1), default=100, metavar="N", help="calls of tools before each submission (100)"
    )
    made.add_argument(
        "--tool-seconds", type=number(float, 0, above=True), default=900.0, metavar="S",
        help="they may take so long, before each submission (900)",
    )  # fmt: skip
    made.add_argument("--tune-seconds", type=number(float, 0), metavar="S", help="search of open integers, each")
    made.add_argument(
        "--http", type=number(int, 0), metavar="PORT", nargs="?", const=8765,
        help="on 127.0.0.1:PORT/mcp (8765) instead of standard input and output",
    )  # fmt: skip
    made.add_argument(
        "--wait", type=number(float, 0, above=True), default=45.0, metavar="S",
        help="a call answers after so long, even where its work goes on (45)",
    )  # fmt: skip
    common(made, json_too=False)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    try:
        import anyio
        import mcp  # noqa: F401

        from graph import mcp_server
    except ImportError:
        raise RunError(
            f"`run.py mcp` needs the mcp extra; in the checkout: {sys.executable} -m pip install -e '.[mcp]' "
            "-c constraints.txt"
        ) from None
    from graph.serving import Service

    asked.starting.cancel()
    run_id = asked.run or _begun(asked)
    service = Service(door(asked), lambda start: begin(asked, start), run_id=run_id, wait_s=asked.wait)
    if asked.kernel and not run_id:
        from graph.serving import StartArguments

        service.start_soon(StartArguments(kernel=asked.kernel[:100], device=asked.device))
    try:
        if asked.http is None:
            anyio.run(mcp_server.over_stdio, service)
        else:
            anyio.run(lambda: mcp_server.over_http(service, asked.http, said=_listening))
    finally:
        ended = service.close(GRACE_S)
    if not ended:
        print("run.py: what was at work is left; a resume goes on from its checkpoint", file=sys.stderr, flush=True)
        os._exit(0)
    return 0


def _listening(port: int) -> None:
    print(f"http://127.0.0.1:{port}/mcp", file=sys.stderr, flush=True)


def _begun(asked: argparse.Namespace) -> str:
    """The run of --run-id where there is one already: a client's settings stay as they are, and a restart goes on."""
    there = asked.run_id and (asked.runs_dir / asked.run_id / "run.json").is_file()
    return asked.run_id if there else ""


def begin(asked: argparse.Namespace, start: StartArguments) -> Begun:
    """A new run on the kernel that the client, or the command line, names. Raises what `choose` does."""
    from graph.choices import choose
    from graph.serving import Begun
    from graph.session import new_record
    from kernels import catalog

    kernel = asked.kernel or start.kernel
    if not asked.kernel and kernel not in catalog.names():  # a folder's spec.py is code: only the person names one
        raise RunError(f"there is no kernel {kernel!r} in the catalog; a folder is named on the command line, --kernel")
    words: dict[str, Any] = vars(_run_defaults()) | {
        name: value for name, value in vars(asked).items() if name not in ("go", "starting", "run", "http", "wait")
    }
    words |= {"kernel": kernel, "device": start.device if asked.device == "auto" else asked.device}
    words["repairs"] = 0
    choice = choose(argparse.Namespace(**words))
    roles = dict.fromkeys(choice.settings.policy, "rules") | {"planner": "client", "coder": "client"}
    settings = choice.settings.changed(
        policy=roles,
        patience=choice.settings.stop.rounds,
        why=(choice.settings.why[0], "policy client: a coding agent submits over MCP"),
    )
    record = new_record(
        settings,
        kernel=choice.kernel.spec.name,
        summary=choice.kernel.spec.summary,
        folder=choice.kernel.folder,
        checkpointer=asked.checkpointer,
    )
    return Begun(record, choice.source)


def _run_defaults() -> argparse.Namespace:
    """Every option of a run as it is where nobody gives it."""
    from graph.commands import run

    return run.parser().parse_args(["--kernel", "-", "--policy", "rules"])
