"""A step of a transformer with a kernel in its places: what a model sees of a kernel's gain. The far side of harness/judge/in_model.py.

    python -I model_step.py PLAN.json

Runs in the tools' box (harness/processes/toolbox.py) with torch in the process: matrix products and attention are torch's, the kernels
are called as a serving engine would, by their plain C entry points. PLAN.json is described in harness/judge/in_model.py. Prints one
JSON object: seconds of each sample by step and variant, and whether the steps were captured.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

EPSILON = 1e-6
CAPTURES = 5
"""Graphs of each variant, one after another: at batch 1 on an H200 two graphs of one step differed by up to 4 %."""


class StepKernel:
    """One kernel's library: its entry for a dtype, called with tensors and sizes on the current stream."""

    def __init__(self, path: str, symbols: list[str], device: str, *, programmatic: bool) -> None:
        library = ctypes.CDLL(path)
        self.entry = next(getattr(library, name) for name in symbols if hasattr(library, name))
        self.entry.restype = None
        self.device = device
        if hasattr(library, "enable_pdl"):
            ctypes.c_int.in_dll(library, "enable_pdl").value = int(programmatic)
        # A library is loaded once: what a variant has set must still hold when it is captured.
        self.programmatic = ctypes.c_int.in_dll(library, "enable_pdl") if hasattr(library, "enable_pdl") else None
        self.wanted = int(programmatic)

    def __call__(self, tensors: list[Tensor], sizes: list[int], scalars: list[float]) -> None:
        if self.programmatic is not None:
            self.programmatic.value = self.wanted
        arguments: list[Any] = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        arguments += [ctypes.c_int64(size) for size in sizes]
        arguments += [ctypes.c_float(value) for value in scalars]
        if self.device == "cuda":
            arguments.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        self.entry(*arguments)


Kernels = dict[str, StepKernel | None]
"""Name -> the kernel in its place; None leaves it out, to see what it takes."""


class StepNorm(nn.Module):
    """residual += x, x = rms_norm(residual) * weight, both [tokens, hidden], in place."""

    def __init__(self, hidden: int, of: dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, **of), requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor, kernels: Kernels) -> Tensor:
        if "fused_add_rmsnorm" in kernels:
            if (kernel := kernels["fused_add_rmsnorm"]) is not None:
                kernel([x, residual, self.weight], [x.shape[0], x.shape[1]], [EPSILON])
            return x
        residual.add_(x)
        x.copy_(nn.functional.rms_norm(residual, (x.shape[1],), self.weight, EPSILON))
        return x


class Attention(nn.Module):
    """Attention of `queries` new tokens a sequence over a cache of `context`; heads [heads, head_dim]. With
    merge_attn_states_lse the
    cache is attended in two parts, as engines do where sequences share a prefix."""

    keys: Tensor
    values: Tensor
    merged: Tensor
    merged_lse: Tensor

    def __init__(self, plan: dict[str, Any], batch: int, queries: int, of: dict[str, Any]) -> None:
        super().__init__()
        hidden, self.heads, self.dim = plan["hidden"], plan["heads"], plan["head_dim"]
        self.batch, self.queries = batch, queries
        self.into = nn.Linear(hidden, self.heads * self.dim, bias=False, **of)
        self.out = nn.Linear(self.heads * self.dim, hidden, bias=False, **of)
        cache = (batch, self.heads, plan["context"], self.dim)
        self.register_buffer("keys", torch.randn(cache, **of))
        self.register_buffer("values", torch.randn(cache, **of))
        tokens = batch * queries
        self.register_buffer("merged", torch.empty(tokens, self.heads, self.dim, **of))
        self.register_buffer("merged_lse", torch.empty(self.heads, tokens, device=of["device"], dtype=torch.float32))

    def part(self, query: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """(output [tokens, heads, head_dim], log-sum-exp [heads, tokens]) over that part of the cache."""
        keys, values = self.keys[:, :, first:last], self.values[:, :, first:last]
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        if query.device.type == "cpu":
            flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, lse = flash(query, keys, values)[:2]
        return output.transpose(1, 2).reshape(-1, self.heads, self.dim), lse.transpose(0, 1).reshape(self.heads, -1)

    def forward(self, x: Tensor, kernels: Kernels) -> Tensor:
        tokens = x.shape[0]
        query = self.into(x).view(self.batch, self.queries, self.heads, self.dim).transpose(1, 2)
        if "merge_attn_states_lse" in kernels:
            half = self.keys.shape[2] // 2
            prefix, suffix = self.part(query, 0, half), self.part(query, half, 2 * half)
            if (kernel := kernels["merge_attn_states_lse"]) is not None:
                tensors = [*(part.contiguous() for part in (*prefix, *suffix)), self.merged, self.merged_lse]
                kernel(tensors, [tokens, self.heads, self.dim], [])
            seen = self.merged
        else:
            seen = nn.functional.scaled_dot_product_attention(query, self.keys, self.values).transpose(1, 2)
        return self.out(seen.reshape(tokens, -1))


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), x [tokens, hidden]."""

    activated: Tensor

    def __init__(self, hidden: int, ffn: int, tokens: int, of: dict[str, Any]) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * ffn, bias=False, **of)
        self.down = nn.Linear(ffn, hidden, bias=False, **of)
        self.register_buffer("activated", torch.zeros(tokens, ffn, **of))

    def forward(self, x: Tensor, kernels: Kernels) -> Tensor:
        both = self.gate_up(x)
        if "silu_and_mul" in kernels:
            if (kernel := kernels["silu_and_mul"]) is not None:
                kernel([both, self.activated], [x.shape[0], self.activated.shape[1]], [])
            return self.down(self.activated)
        gate, up = both.chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * up)


class Step(nn.Module):
    """`layers` transformer layers over [batch * queries, hidden]."""

    first: Tensor

    def __init__(self, plan: dict[str, Any], batch: int, queries: int, of: dict[str, Any]) -> None:
        super().__init__()
        tokens, hidden = batch * queries, plan["hidden"]
        norms = [StepNorm(hidden, of) for _ in range(2 * plan["layers"])]
        self.before, self.between = nn.ModuleList(norms[::2]), nn.ModuleList(norms[1::2])
        self.attention = nn.ModuleList(Attention(plan, batch, queries, of) for _ in range(plan["layers"]))
        self.mlp = nn.ModuleList(MLP(hidden, plan["ffn"], tokens, of) for _ in range(plan["layers"]))
        self.register_buffer("first", torch.randn(tokens, hidden, **of))
        for linear in (module for module in self.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)

    def forward(self, kernels: Kernels) -> Tensor:
        x, residual = self.first.clone(), torch.zeros_like(self.first)
        for before, attention, between, mlp in zip(self.before, self.attention, self.between, self.mlp, strict=True):
            x = attention(before(x, residual, kernels), kernels)
            x = mlp(between(x, residual, kernels), kernels)
        return x


def load_kernels(libraries: dict[str, str], plan: dict[str, Any], variant: str) -> Kernels:
    """The kernels of a variant; those without a library are left out."""

    def kernel(name: str, path: str) -> StepKernel:
        return StepKernel(path, plan["symbols"][name], plan["device"], programmatic=variant == "pdl")

    return {name: kernel(name, path) if path else None for name, path in libraries.items()}


def prepare(step: Step, kernels: Kernels, device: str) -> tuple[Callable[[], None], bool]:
    """(what runs the step once, whether it is a captured graph)."""
    if device == "cpu":
        return lambda: step(kernels), False
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(kernels)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step(kernels)
    return graph.replay, True


def seconds(run: Callable[[], None], device: str) -> float:
    if device == "cpu":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e-3


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    device = plan["device"]
    of: dict[str, Any] = {"device": device, "dtype": getattr(torch, plan["dtype"])}
    torch.manual_seed(0)
    told: dict[str, Any] = {"steps": {}, "captured": True}
    with torch.no_grad():
        for name, (batch, queries) in plan["steps"].items():
            step = Step(plan, batch, queries, of)
            taken: dict[str, list[float]] = {variant: [] for variant in plan["variants"]}
            captures = CAPTURES if device == "cuda" else 1
            for _ in range(captures):
                runs: dict[str, Callable[[], None]] = {}
                for variant, libraries in plan["variants"].items():
                    runs[variant], captured = prepare(step, load_kernels(libraries, plan, variant), device)
                    told["captured"] = told["captured"] and captured
                    seconds(runs[variant], device)
                for _ in range(-(-plan["samples"] // captures)):
                    order = list(runs)
                    random.shuffle(order)
                    for variant in (
                        *order,
                        *reversed(order),
                    ):  # A B B A: a drift takes as much from one as from the other
                        taken[variant].append(seconds(runs[variant], device))
                del runs
            told["steps"][name] = {
                variant: [sum(pair) / 2 for pair in zip(v[::2], v[1::2], strict=True)] for variant, v in taken.items()
            }
            del step
    print(json.dumps(told))


if __name__ == "__main__":
    main()
