"""What commands have alike: the base of their records, options that several share, and the exit codes."""

from __future__ import annotations

import os
import sys
import threading
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from harness.options import EXIT_USAGE as EXIT_USAGE
from harness.options import Option, Options
from nodes.options import ROLES

EXIT_FAILURE, EXIT_SAME, EXIT_PAUSED, EXIT_INTERRUPTED = 1, 3, 75, 130
STARTED = threading.Event()
"""Set once there is something to see, or nothing to wait for."""


class Command(Options):
    """A command of run.py: its fields are its options, its docstring is what its help says of it."""

    @abstractmethod
    def go(self) -> int:
        """Do it; the exit code."""


class RunsDir(Options):
    runs_dir: Annotated[Path, Option("DIR")] = Path("runs")
    """Where runs are kept."""


class Clocks(Options):
    lock_clocks: Annotated[int | None, Option("MHZ", const=0)] = Field(default=None, ge=0)
    """Hold the GPU's clocks meanwhile (root); without MHZ at its default application clock."""


class AsJson(Options):
    as_json: Annotated[bool, Option(name="json")] = False
    """Print the record as JSON, and nothing else."""


class Database(RunsDir):
    checkpointer: Annotated[str, Option("URL")] = Field(
        default_factory=lambda: os.environ.get("ASTROLABE_CHECKPOINTER", "")
    )
    """Postgresql://... for SQLite in the run's folder; not written down: a resume needs it again (also ASTROLABE_CHECKPOINTER)."""


class OfRuns(AsJson, Database):
    """Options of a command about runs."""


class Working(Clocks, OfRuns):
    """Options of a command that works on a run."""

    no_live: bool = False
    """Plain lines instead of the live display."""
    on_end: Annotated[str, Option("COMMAND|URL")] = Field(
        default_factory=lambda: os.environ.get("ASTROLABE_ON_END", "")
    )
    """Tell this when the run ends, pauses or fails: a command (JSON on standard input) or a URL (POST); also ASTROLABE_ON_END."""


Pattern = Annotated[str | None, Option("PATTERN"), Field(description="Only what fits; * and ? stand for letters.")]

BOTH = ("both", "kernelbench")
"""`--protocol` that asks for KernelBench's own verdict, too."""


class ByProtocol(Options):
    protocol: Literal["both", "ours", "kernelbench"] | None = None
    """Whose verdict and times a PyTorch module gets; kernelbench means both (ours; in a campaign on this machine's GPU both)."""


CHANGES = ("rounds", "width", "seconds", "tokens", "money_usd")
"""The options of a run that may change while it goes on."""


def policy_changes(policy: str | None, model: str) -> dict[str, Any]:
    """The settings that change where one policy, one model or both answer for all roles from here on."""
    changes: dict[str, Any] = {"policy": dict.fromkeys(ROLES, policy)} if policy else {}
    return changes | ({"models": dict.fromkeys(ROLES, model)} if model else {})


UNSAID = ("checkpointer", "run_id")
"""Options left out where a command line is written down: a database's address may hold a password."""


def usage_error(sentence: str) -> int:
    print(f"run.py: {sentence}", file=sys.stderr)
    return EXIT_USAGE
