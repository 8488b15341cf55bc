"""In a model: the gain of a whole transformer step, with the baseline's kernels and with the winners' in their places.

A step is captured as a CUDA graph (run eagerly on a CPU) and its variants are timed in turn, A B B A, in one process in the
tools' box: the weights and caches are the same for all. Nobody decides by this: a candidate shares that process with the
clock. It says what is left of a kernel's gain among matrix products and attention.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from harness.device import cuda_home, cuda_library
from harness.options import Options
from harness.processes.toolbox import Toolbox
from harness.records import Build, Comparison, Interval
from harness.timing.comparison import MARGIN, compare, median_interval
from kernels.spec import Device, Frozen, Spec

STEP = Path(__file__).parent.parent / "farside" / "model_step.py"
PLACES = ("fused_add_rmsnorm", "merge_attn_states_lse", "silu_and_mul")
"""The kernels that model_step.py has a place for."""
SECONDS = 300.0


class ModelError(Exception):
    """The step cannot be run; one sentence says why."""


class Shape(Options):
    """A transformer's sizes, those of one rank where it is split over several GPUs."""

    layers: int = Field(default=8, ge=1)
    hidden: int = Field(default=4096, ge=1)
    """Width of the residual stream."""
    ffn: int = Field(default=14336, ge=1)
    """Width of the MLP."""
    heads: int = Field(default=32, ge=1)
    """Attention heads."""
    head_dim: int = Field(default=128, ge=1)
    """Width of a head."""
    batch: int = Field(default=32, ge=1)
    """Sequences of the decode step, which has one new token of each."""
    context: int = Field(default=1024, ge=2)
    """Tokens in the cache of each one of them."""
    prefill: int = Field(default=2048, ge=0)
    """New tokens of the prefill step, of one sequence; 0: none."""


class StepGain(Frozen):
    """One step: seconds, and what the winners make of it."""

    name: str
    baseline_us: float
    winner_us: float
    speedup: Interval
    """Baseline step / winner step."""
    comparison: Comparison
    pdl: Interval | None = None
    """The same speedup with programmatic launch, where a winner launches so."""
    share: float
    """Share of the baseline step's time that the kernels take: what is saved where they are left out."""
    saved_us: float
    """Microseconds of one step that the winners save."""
    calls: int
    """Number of calls of the kernels in one step."""


class ModelGain(Frozen):
    """What `run` measured."""

    kernels: tuple[str, ...]
    shape: Shape
    dtype: str
    captured: bool
    steps: tuple[StepGain, ...]


def run(
    kernels: Mapping[str, tuple[Spec, Build, Build]], shape: Shape, device: Device, *, dtype: str, samples: int = 30
) -> ModelGain:
    """The steps with the first and with the second build of each kernel. Raises ModelError, or toolbox.ToolboxUnavailable.

    kernels: name -> (spec, baseline's build, winner's build), all of `dtype`.
    """
    if unknown := [name for name in kernels if name not in PLACES]:
        raise ModelError(f"no model step knows {unknown[0]} (it has places for {', '.join(PLACES)})")
    for name, (spec, *_) in kernels.items():
        if dtype not in spec.dtypes:
            raise ModelError(f"{name} has no dtype {dtype} (it has {', '.join(spec.dtypes)})")
    steps = {"decode": (shape.batch, 1)} | ({"prefill": (1, shape.prefill)} if shape.prefill else {})
    with Toolbox() as box:
        shutil.copyfile(STEP, box.scratch / STEP.name)
        libraries: dict[str, dict[str, str]] = {"baseline": {}, "winner": {}, "pdl": {}, "without": {}}
        for name, (_, baseline, winner) in kernels.items():
            for variant, build in (("baseline", baseline), ("winner", winner), ("pdl", winner)):
                # A file each: a library that is loaded twice is one, and its choice of launches with it.
                own = box.scratch / f"{name}-{variant}.so"
                shutil.copyfile(build.artefact, own)
                libraries[variant][name] = str(own)
            libraries["without"][name] = ""
        if device == "cpu":
            del libraries["pdl"]
        symbols = {name: spec.entry_names(dtype) for name, (spec, *_) in kernels.items()}
        plan = shape.model_dump() | {"device": device, "dtype": dtype, "samples": samples, "symbols": symbols}
        plan |= {"variants": libraries, "steps": steps}
        (box.scratch / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, "-I", str(box.scratch / STEP.name), str(box.scratch / "plan.json")]
        ran = box.run(command, readable=_readable(device), seconds=SECONDS)
        if ran.code:
            last = ran.output.strip().splitlines()[-1:] or ["it said nothing"]
            raise ModelError(f"the model step ended with exit code {ran.code}: {last[0][:300]}")
    try:
        told = json.loads(ran.output.strip().splitlines()[-1])
        found = tuple(_gain(name, told["steps"][name], kernels, shape, device) for name in steps)
        return ModelGain(kernels=tuple(kernels), shape=shape, dtype=dtype, captured=bool(told["captured"]), steps=found)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(f"the model step answered nonsense ({type(error).__name__})") from None


def _readable(device: Device) -> list[str]:
    places = {Path(sys.prefix), Path(sys.base_prefix)}
    if device == "cuda":
        places |= {Path(cuda_library()).parent, *([home] if (home := cuda_home()) else [])}
    places |= {Path(path) for path in sys.path if path.endswith("-packages")}
    return sorted(str(place) for place in places if place not in (Path("/"), Path("/usr")))


def _gain(name: str, taken: dict[str, Sequence[float]], kernels: Mapping, shape: Shape, device: Device) -> StepGain:
    samples = {variant: [float(value) for value in values] for variant, values in taken.items()}
    if any(not values or not all(math.isfinite(v) and v > 0 for v in values) for values in samples.values()):
        raise ValueError("seconds")

    def over(variant: str) -> Interval:
        return median_interval([b / v for b, v in zip(samples["baseline"], samples[variant], strict=True)])

    def median_us(variant: str) -> float:
        return median_interval(samples[variant]).median * 1e6

    speedup = over("winner")
    return StepGain(
        name=name,
        baseline_us=median_us("baseline"),
        winner_us=median_us("winner"),
        speedup=speedup,
        comparison=compare(speedup, MARGIN[device] / 10),
        pdl=over("pdl") if "pdl" in samples else None,
        share=max(0.0, 1 - median_us("without") / median_us("baseline")),
        saved_us=median_us("baseline") - median_us("winner"),
        calls=shape.layers * sum(2 if kernel == "fused_add_rmsnorm" else 1 for kernel in kernels),
    )
