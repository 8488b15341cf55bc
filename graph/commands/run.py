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
  recheck EXPORT        judge such a package again after an update of torch
  model RUN...          what a model's step gains by the best of runs
  bring TEST.py::NAME   the folder of an engine's kernel, from a test of it
  rank TRACE            which kernel of a profiled program is worth the work
  check FOLDER          look at a kernel's folder without a GPU
  kernels               list the kernels
  doctor                what this machine has, and what its lacks mean
  mcp                   tools for a coding agent (docs/mcp.md)
  memory                what runs learned: list, export, forget
  epoch                 train a graph neural network (docs/minibatch.md)
  infer                 its accuracy from sampled and from all neighbours

exit codes:
  0    improved, or already at the limit; a file that PASSED
  1    our own failure
  2    bad usage, bad input, a full disk
  3    finished without improvement; a file that did not pass
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
