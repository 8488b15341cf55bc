"""What `epoch` and `infer` are asked for: each field is an option, its docstring the help (harness/options.py).

Light: `run.py epoch --help` imports it. What None stands for is minibatch/options.py's to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field

from harness.options import Option, Options

MODELS = ("sage", "gat", "gin", "sage-ri")


def _model(text: str) -> str:
    if text not in MODELS and ".py:" not in text:
        raise ValueError(f"{text!r} is none of {', '.join(MODELS)} and no FILE.py:CLASS")
    return text


class GraphRequest(Options):
    graph: Annotated[str, Option("NAME|FOLDER")] = "small"
    """Synthetic, of OGB, or a graph's folder."""
    data: Annotated[Path, Option("DIR")] = Path("dataset")
    """Where OGB's data sets are or go."""
    fanout: Annotated[tuple[int, ...] | None, Option("N", together=True, usual="15 10 5")] = None
    """Neighbours of each hop, the seeds' first."""
    batch: Annotated[int | None, Option(usual="1024")] = Field(default=None, ge=1, le=(1 << 31) - 1)
    """Seeds a batch and process."""
    model: Annotated[
        str | None, Option("NAME|FILE.py:CLASS", usual="sage"), AfterValidator(lambda m: m and _model(m))
    ] = None
    """Sage, gat, gin, sage-ri, or a class of your own that PyTorch Geometric's models could be."""
    hidden: Annotated[int | None, Option(usual="256; 64 on a CPU")] = Field(default=None, ge=8, le=1 << 20)
    """Hidden width."""
    seed: Annotated[int | None, Option(usual="0")] = Field(default=None, ge=0, le=(1 << 63) - 1)
    threads: Annotated[int, Option(usual="all cores")] = Field(default=0, ge=0, le=1024)
    """Threads that prepare batches."""
    checkpoint: Annotated[Path | None, Option(usual="minibatch/<graph>-<model>.pt in the runs' folder")] = None
    runs_dir: Annotated[Path, Option("DIR", hidden=True)] = Path("runs")
    as_json: Annotated[bool, Option(name="json")] = False
    """The record as JSON on standard output, nothing else there."""


class EpochRequest(GraphRequest):
    """Train a graph neural network on sampled mini-batches."""

    epochs: int = Field(default=5, ge=1)
    lr: Annotated[float | None, Option("X", usual="0.003")] = Field(default=None, gt=0)
    """Learning rate of Adam."""
    schedule: Annotated[Literal["constant", "cosine", "plateau"] | None, Option(usual="constant")] = None
    """Schedule of the learning rate."""
    patience: int | None = Field(default=None, ge=1, le=1 << 30)
    """End after N epochs without a better validation."""
    loss: Annotated[Literal["classes", "multi-label", "regression"] | None, Option(usual="what they look like")] = None
    """What labels are."""
    audit: bool = False
    """First look at what every process samples: no replacement, no neighbour missing, every seed once."""
    gpus: int = Field(default=0, ge=0)
    """Train on so many GPUs."""
    ranks: int = Field(default=1, ge=1)
    """Processes on the CPU, over gloo."""
    features: Literal["hbm", "host"] | None = None
    """Where features are kept (on the device where they fit, else in host memory)."""
    cache_gib: Annotated[float | None, Option("N", usual="what is free")] = Field(default=None, ge=0)
    """GiB of hot rows kept on the device, with --features host."""
    rung: Literal["pyg", "pyg-hbm", "salient", "gpu-plain", "gpu", "gpu-fused", "gpu-graph", "gpu-layers"] | None = None
    """How batches are made and trained."""
    resume: bool = False
    """Go on from the checkpoint."""
    report: Annotated[Path | None, Option("FILE.html")] = None
    """Write a report of the last epoch: what each stage took and what ran when."""
    swapped: Annotated[tuple[str, ...], Option("RUN", "with")] = ()
    """Say whether epochs become faster with the best of this run in its kernel's place; repeatable, trains nothing."""


class InferRequest(GraphRequest):
    """Test accuracy of a model that `epoch` trained, from sampled and from all neighbours."""

    fanout: Annotated[tuple[int, ...] | None, Option("N", together=True, usual="20 a layer")] = None
    on: Literal["train", "valid", "test", "all"] = "test"
    """Ids to infer."""
    loss: Annotated[str | None, Option(absent=True)] = None
    """What labels are, as the checkpoint has it."""
    out: Path | None = None
    """Write the predictions: FILE.npz or FILE.csv."""


if TYPE_CHECKING:  # The same records once minibatch/options.py has said what None stood for.

    class ResolvedEpoch(EpochRequest):
        fanout: tuple[int, ...]
        batch: int
        model: str
        seed: int
        lr: float
        schedule: Literal["constant", "cosine", "plateau"]

    class ResolvedInference(InferRequest):
        fanout: tuple[int, ...]
        batch: int
        model: str
        seed: int

    Resolved: TypeAlias = ResolvedEpoch | ResolvedInference
