"""`run.py mcp`: the workbench for any coding agent, over the Model Context Protocol (docs/mcp.md)."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from graph.commands.opened import open_service
from graph.commands.options import STARTED, UNSAID, Command, Database
from graph.request import OpenRequest
from graph.runs import RunError
from harness.options import Option, command_line
from kernels.extras import install
from nodes.options import Chat, StopRule

if TYPE_CHECKING:
    from graph.serving import Begun, StartArguments

GRACE_S = 3.0
"""Seconds that work in flight may still take after the client has left."""
NOT_SERVED = (
    "engine", "device_model", "tls", "insecure", "draft", "width", "patience", "repairs", "review", "approve", "agents", "coder",
    "policy", "role_policy", "transcript", "tokens", "role_tokens", "money_usd", "role_money_usd", "fallback",
    *Chat.model_fields,
)  # fmt: skip
"""Options about the agents whose place the client takes, and about other machines: one that is not named here is served."""


class ServedRequest(OpenRequest):
    """What the client's run is asked for: rules do what the client does not."""

    stop: StopRule = StopRule(rounds=20)
    turns: Annotated[int, Option()] = Field(default=100, ge=1)
    """Calls of tools before each submission."""
    tool_seconds: Annotated[float | None, Option()] = Field(default=900.0, gt=0)
    """Seconds of tools before each submission."""
    repairs: int = 0
    policy: Literal["auto", "rules", "chat", "replay"] = "rules"


class McpCommand(Database, Command):
    """Serve compile, check, time, profile and submit to a coding agent, over the Model Context Protocol."""

    brief: ClassVar = (
        "kernel", "source", "device", "run_id", "run", "rounds", "seconds", "turns", "tool_seconds", "exact", "http", "wait", "runs_dir",
    )  # fmt: skip
    request: Annotated[ServedRequest, Option(without=NOT_SERVED)] = ServedRequest()
    run: Annotated[str, Option("RUN")] = ""
    """Go on with that run, if it was begun here."""
    http: Annotated[int | None, Option("PORT", const=8765)] = Field(default=None, ge=0)
    """Serve on 127.0.0.1:PORT/mcp (8765) instead of standard input and output."""
    wait: Annotated[float, Option("S")] = Field(default=45.0, gt=0)
    """A call answers after so long, even where its work goes on."""

    def go(self) -> int:
        try:
            import anyio
            import mcp  # noqa: F401

            from graph import mcp_server
        except ImportError:
            raise RunError(f"`run.py mcp` needs the mcp extra; in the checkout: {install('mcp')}") from None
        from graph.serving import Service

        STARTED.set()
        run_id = self.run or self._begun()
        service = Service(
            open_service(self.runs_dir, self.checkpointer),
            lambda start: begin(self, start),
            run_id=run_id,
            wait_s=self.wait,
        )
        if self.request.kernel and not run_id:
            from graph.serving import StartArguments

            service.start_soon(StartArguments(kernel=self.request.kernel[:100], device=self.request.device))
        try:
            port = self.http
            if port is None:
                anyio.run(mcp_server.over_stdio, service)
            else:
                anyio.run(lambda: mcp_server.over_http(service, port, said=_listening))
        finally:
            ended = service.close(GRACE_S)
        if not ended:
            print("run.py: what was at work is left; a resume goes on from its checkpoint", file=sys.stderr, flush=True)
            os._exit(0)
        return 0

    def _begun(self) -> str:
        """The run of --run-id where there is one already: a client's settings stay as they are, and a restart goes on."""
        there = self.request.run_id and (self.runs_dir / self.request.run_id / "run.json").is_file()
        return self.request.run_id if there else ""


def _listening(port: int) -> None:
    print(f"http://127.0.0.1:{port}/mcp", file=sys.stderr, flush=True)


def begin(command: McpCommand, start: StartArguments) -> Begun:
    """A new run on the kernel that the client, or the command line, names. Raises what `choose` does."""
    from graph.choices import choose
    from graph.serving import Begun
    from graph.session import new_record
    from kernels import catalog
    from nodes.policies.client import ClientPolicy

    request = command.request
    kernel = request.kernel or start.kernel
    if not request.kernel and kernel not in catalog.names():  # a folder's spec.py is code: only the person names one
        raise RunError(f"there is no kernel {kernel!r} in the catalog; a folder is named on the command line, --kernel")
    choice = choose(
        request.with_(
            kernel=kernel,
            device=start.device if request.device == "auto" else request.device,
            baseline=request.baseline or start.baseline,
        ),
        command=command_line(command, "mcp", UNSAID),
    )
    roles = {role: "client" if hasattr(ClientPolicy, role) else "rules" for role in choice.settings.policy}
    settings = choice.settings.with_changes(
        policy=roles,
        patience=choice.settings.stop.rounds,
        why=(choice.settings.why[0], "policy client: a coding agent submits over MCP"),
    )
    return Begun(new_record(settings, choice.kernel, command.checkpointer), choice.source)
