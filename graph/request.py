"""What a run is asked for: the one record behind run.py's options, Studio's configuration, a campaign and MCP."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from harness import engines
from harness.engines import EngineChoice
from harness.options import Option, Options
from nodes.options import AGENTS, Role, RunOptions


class KernelRequest(Options):
    """What is to be made faster, or judged."""

    kernel: Annotated[str, Option("NAME|FOLDER|FILE")]
    """A kernel of the catalog, your folder, a PyTorch module as in KernelBench (.py), a .json of flashinfer-bench or
    SOL-ExecBench."""
    baseline: str | None = None
    """Which of the kernel's baselines is 1.0x."""
    device: Annotated[Literal["auto", "cuda", "cpu"], Option(usual="auto: cuda where there is a GPU")] = "auto"
    """Where the kernel runs."""


class PlaceOptions(Options):
    """Where candidates are built, checked and timed."""

    engine: Annotated[str, Option("NAME")] = "process"
    """Where candidates are built, checked and timed: process (here), dask (each GPU of this machine), dask:N, dask:ADDRESS
    (docs/cluster.md)."""
    device_model: Annotated[str, Option("NAME")] = ""
    """Kind of device to use, where a cluster has several."""
    tls: Annotated[str, Option("DIR")] = ""
    """Certificate and key of the cluster at ADDRESS."""
    insecure: bool = False
    """No TLS although ADDRESS is beyond this machine."""

    def choice(self) -> EngineChoice:
        """Raises EngineError."""
        return engines.choice(self.engine, model=self.device_model, tls=self.tls, insecure=self.insecure)


class RunRequest(KernelRequest, RunOptions):
    place: PlaceOptions = PlaceOptions()
    source: Annotated[str | None, Option("FILE")] = None
    """Your own source of that kernel: it is then 1.0x."""
    draft: Annotated[str | None, Option("FILE")] = None
    """Your own first candidate (ModelNew) for a PyTorch module."""
    compare: tuple[Literal["compile", "max-autotune", "none"], ...] = ()
    """Time the winner beside torch.compile too; repeatable (modules on cuda: both modes)."""
    run_id: Annotated[str, Option("NAME")] = ""
    """Name the run."""
    tune_seconds: Annotated[float | None, Option(usual="cuda 8, cpu 4")] = Field(default=None, ge=0)
    """Seconds of each search over a source's open integers (block sizes and the like)."""
    policy: Annotated[Literal["auto", "rules", "chat", "replay"], Option(group=AGENTS)] = "auto"
    """Who answers for agents (auto: chat with key and --model, else rules)."""
    role_policy: Annotated[dict[Role, Literal["rules", "chat", "replay"]], Option(name="policy", group=AGENTS)] = Field(
        default_factory=dict
    )
    coder: Literal["tools", "oneshot"] = "tools"
    tool_seconds: Annotated[float | None, Option(group=AGENTS, usual="cuda 240, cpu 120")] = Field(default=None, gt=0)
    """Seconds that the coder's tools may take for one plan."""

    @model_validator(mode="before")
    @classmethod
    def _reviewed(cls, values: Any) -> Any:
        """Who says who reviews wants a review."""
        if isinstance(values, dict) and {"policy_reviewer", "model_reviewer"} & set(values):
            return values | {"review": True}
        return values


class OpenRequest(RunRequest):
    """One whose kernel is said later."""

    kernel: Annotated[str, Option("NAME|FOLDER|FILE")] = ""


class EachRequest(OpenRequest):
    """What every problem's run is asked for."""

    memory: Literal["on", "off"] = "off"
    """On: let problems learn from those before them."""
