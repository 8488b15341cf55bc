"""`python -I compiler/draft PROBLEM DEVICE ANSWER [DTYPE] [NUMERICS]` writes JSON to ANSWER: source, notes and kernels, or `{"none": sentence}`."""

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 150.0
"""Processor time that a draft may take: DenseNet201, of KernelBench's modules the longest to follow, takes 50 s on a busy machine, and a core may be half as fast."""
TOO_LONG = (
    f"drafting takes more than {LIMIT_S:.0f} s of processor time, since torch.export follows forward operator by operator and loop step by step: "
    "the module stays with torch; with fewer steps or layers in get_inputs and get_init_inputs it is drafted"
)


def _limit(answer: str) -> None:
    """Answers that it takes too long when it does; torch.export would take an exception for the module's own."""

    def stop(*_) -> None:
        if (
            time.thread_time() < LIMIT_S
        ):  # other threads count for the timer: a host of many cores wakes as many of torch's
            return
        Path(answer).write_text(json.dumps({"none": TOO_LONG}), encoding="utf-8")
        os._exit(0)

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S, 0.1)


def _package():
    """This folder as a package of its own name, without its neighbours on the path: some are called as the library's modules."""
    spec = importlib.util.spec_from_file_location("draft", HERE / "__init__.py", submodule_search_locations=[str(HERE)])
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["draft"] = package
    spec.loader.exec_module(package)
    return package


def main() -> None:
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != HERE]
    package = _package()
    problem, device, answer, *more = sys.argv[1:]
    _limit(answer)
    named = {"numerics" if word in ("eager", "fp32") else "dtype": word for word in more}
    try:
        found = package.answer(Path(problem).read_text(encoding="utf-8"), device, **named)
    except package.NoDraft as none:
        found = {"none": str(none)}
    signal.setitimer(signal.ITIMER_PROF, 0)
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
