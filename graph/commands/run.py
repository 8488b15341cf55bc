"""`run.py --kernel NAME`: a run from its start."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from graph.commands.opened import asker, choose_display, close, engine, notify_on_end, open_service
from graph.commands.options import UNSAID, Command, Working
from graph.request import RunRequest
from harness.options import command_line

if TYPE_CHECKING:
    from graph.session import Ending
    from harness.engines import Engine

EPILOG = """\
commands (run.py COMMAND --help):
 a kernel
  kernels               list the kernels of the catalog
  bring TEST.py::NAME   write the folder of an engine's kernel, from its test
  check FOLDER          look at a kernel's folder; needs no GPU
  rank TRACE            which kernel of a profiled program is worth the work
  evaluate FILE         the verdict on one source, without any agent
 a run
  resume RUN            go on after Ctrl-C, a kill, a reboot, a pause
  runs, show RUN        list the runs; the attempts of one
  compare RUN RUN       two runs, or two files of results, side by side
  history RUN, fork RUN its checkpoints; a new run from one of them
  graph [RUN]           draw the graph of the agents, or the path of a run
 its winner
  export RUN            a Python package with a torch operator, or a diff
  recheck EXPORT        judge such a package again, after an update of torch
  model RUN...          what a whole transformer step gains by it
 more
  campaign              every problem of a suite, one run each, one report
  mcp                   tools for a coding agent (docs/mcp.md)
  scheduler, worker     lend machines to `--engine dask` (docs/cluster.md)
  memory                what runs learned: list, export, forget
  epoch, infer          train and test a graph neural network
  doctor                what this machine has, and what its lacks mean

exit codes:
  0    improved, or already at the limit; a source that PASSED
  1    a fault of the program
  2    bad usage, bad input, a full disk
  3    finished without improvement; a source that did not pass
  75   paused: an answer or an approval is missing; resume goes on
  130  interrupted; resume goes on

examples:
  run.py --kernel silu_and_mul
  run.py --kernel silu_and_mul --source my.cu --rounds 2 --run-id mine
  run.py --kernel level1/23_Softmax.py --policy chat --model NAME
"""


class RunCommand(RunRequest, Working, Command):
    """Makes a kernel faster: agents plan and write, the harness checks and times."""

    usage: ClassVar = "run.py --kernel NAME [options]\n       run.py COMMAND ..."
    epilog: ClassVar = EPILOG
    brief: ClassVar = (
        "kernel", "source", "device", "rounds", "seconds", "exact", "policy", "model", "tokens", "run_id", "runs_dir", "json",
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
        with self._begin_imports():
            from graph import checkpoints

            if self.checkpointer:
                checkpoints.check_url(self.checkpointer)
            with engine(self.place, self.device) as at_work:
                ending = self._run(at_work)
        return close(ending, self)

    def _begin_imports(self) -> AbstractContextManager[None]:
        """What takes seconds to import, and is wanted once this process has imported the rest: begun beside that."""
        from harness import device

        if self.device != "cpu":
            device.warm_up()
        if self.policy not in ("auto", "rules") or os.environ.get("OPENAI_API_KEY") or self.kernel.endswith(".py"):
            return nullcontext()
        from nodes import compiling

        return compiling.waiting_process()

    def _run(self, at_work: Engine) -> Ending:
        from graph.choices import choose
        from graph.runs import RunFolder
        from graph.session import new_record
        from harness.timing.clocks import lock

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
