"""`run.py --kernel NAME`: a run from its start."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from graph.commands.opened import asker, check_on_end, choose_display, close, engine, notify_on_end, open_service
from graph.commands.options import UNSAID, Command, Working
from graph.request import RunRequest
from harness.options import command_line

if TYPE_CHECKING:
    from graph.session import Ending
    from harness.engines import Engine

EPILOG = """\
commands (run.py COMMAND --help says more):
  kernels, bring, check   list kernels; write a folder from a test; look at one
  rank TRACE              which kernel of a profiled program is worth the work
  evaluate FILE           the verdict on one source, without any agent
  resume RUN              go on after Ctrl-C, a kill, a reboot, a pause
  runs, show, compare     list runs; one run's attempts; two side by side
  history, fork, graph    a run's checkpoints; a new run from one; a drawing
  export, recheck, model  a winner's package; judged again; its gain in a model
  campaign                every problem of a suite, one run each, one report
  mcp                     tools for a coding agent (docs/mcp.md)
  scheduler, worker       lend machines to `--engine dask` (docs/cluster.md)
  memory                  what runs learned: list, export, forget
  epoch, infer            train and test a graph neural network
  doctor, --version       what this machine has and lacks; the program's version

exit codes:
  0  improved, at the limit, or PASSED    3    no improvement, or not PASSED
  1  a fault of the program               75   paused; `run.py resume` goes on
  2  bad usage or input, a full disk      130  interrupted; the same goes on

example: run.py --kernel silu_and_mul --source my.cu --rounds 2 --run-id mine
"""


class RunCommand(RunRequest, Working, Command):
    """Makes a kernel faster: agents plan and write, the harness checks and times."""

    usage: ClassVar = "run.py --kernel NAME [options], or run.py COMMAND [options]"
    epilog: ClassVar = EPILOG
    brief: ClassVar = (
        "kernel", "source", "device", "rounds", "seconds", "policy", "model", "run_id", "json",
    )  # fmt: skip
    headings: ClassVar = {
        "the kernel": ("kernel", "source", "draft", "baseline", "dtype", "device"),
        "what is a win": ("exact", "compare", "own_kernels", "numerics", "sandbox"),
        "how long": (
            "rounds",
            "enough",
            "patience",
            "light",
            "seconds",
            "tokens",
            "money",
            "width",
            "repairs",
            "tune_seconds",
        ),
        "the run": ("run_id", "runs_dir", "approve", "memory", "on_end", "checkpointer"),
        "the output": ("no_live", "json"),
        "the machine": ("engine", "device_model", "tls", "insecure", "lock_clocks"),
    }

    def go(self) -> int:
        check_on_end(self.on_end)
        gc.disable()  # imports leave next to no garbage, and to look for it takes a fifth of their time
        try:
            with self._begin_imports():
                from graph import checkpoints

                if self.checkpointer:
                    checkpoints.check_url(self.checkpointer)
                with engine(self.place, self.device) as at_work:
                    ending = self._run(at_work)
        finally:
            gc.enable()
        return close(ending, self)

    @contextmanager
    def _begin_imports(self) -> Iterator[None]:
        """What takes seconds to import, and is wanted once this process has imported the rest: begun beside that."""
        from harness import device

        by_model = self.policy not in ("auto", "rules") or os.environ.get("OPENAI_API_KEY")
        waiting: AbstractContextManager[None] = nullcontext()
        if not by_model and not self.kernel.endswith(".py"):
            from nodes import compiling

            waiting = compiling.waiting_process()
        with waiting:  # before torch is imported here: what compiles is apart only until then
            if self.device != "cpu":
                device.warm_up()
                if self.place.engine == "process" and device.is_there():
                    self._begin_workers()
            yield

    def _begin_workers(self) -> None:
        """CUDA's start in the processes of which a first verdict is asked."""
        from kernels import importers

        if importers.is_problem(self.kernel):
            from harness.problems import pytorch

            pytorch.begin_workers()
        else:
            from harness import device, evaluate
            from harness.judge import search
            from harness.processes import worker

            worker.get_spares().prepare(worker.LIMITS)
            if (os.cpu_count() or 1) >= search.MANY_CORES:
                evaluate.begin_first_builds(
                    self.kernel, None if self.source else self.baseline or "", device.bare_facts
                )

    def _run(self, at_work: Engine) -> Ending:
        from graph.choices import choose
        from graph.runs import RunFolder
        from graph.session import new_record
        from harness.timing.clocks import lock

        gc.freeze()
        gc.enable()
        choice = choose(self, at_work, command_line(self, leave_out=UNSAID))
        record = new_record(choice.settings, choice.kernel, self.checkpointer)
        made = RunFolder(self.runs_dir, record.run_id)
        settings = choice.settings
        with lock(self.lock_clocks, settings.device, self.place.engine):  # before there is a run, where it may not be
            made.reserve()
            with notify_on_end(self.on_end, made), choose_display(self, settings.why, at_work) as shown:
                return open_service(self.runs_dir, self.checkpointer, engine=at_work).start(
                    record, choice.source, shown, asker(), choice.draft
                )
