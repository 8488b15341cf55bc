"""Which kernel of a program is worth the work: a trace of torch's profiler as a table, `run.py rank`."""

from __future__ import annotations

import bisect
import gzip
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernels import catalog
from kernels.catalog import KernelError
from kernels.spec import DTYPE_BYTES

ON_GPU = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events"))
"""Categories of what a device ran, small letters: older profilers wrote Kernel, Memcpy, Memset."""
DATA_SHEETS = {
    "H200": (4800, 989), "H100 NVL": (3900, 835), "H100 PCIe": (2000, 756), "H100": (3350, 989), "H800": (3350, 989), "H20": (4000, 148),
    "B200": (8000, 2250), "GB200": (8000, 2500), "A100-SXM4-80": (2039, 312), "A100": (1555, 312), "A800": (2039, 312), "L40S": (864, 362),
    "L40": (864, 181), "L4": (300, 121), "A10": (600, 125), "RTX 4090": (1008, 165), "V100": (900, 125), "T4": (320, 65),
    "MI300X": (5300, 1307), "MI325X": (6000, 1307), "MI355X": (8000, 2500),
}  # fmt: skip
"""Device, by a part of its name -> (GB/s of its memory, dense TFLOP/s in bfloat16 (float16 before it)), by its maker's data sheet."""
OURS: tuple[tuple[str, str, str], ...] = (
    (r"^aten::(t|transpose|view|_unsafe_view|reshape|expand|slice|select|as_strided|permute|unsqueeze|squeeze|empty\w*|detach|alias|narrow|split"
     r"|chunk|unbind|resize_|result_type|linear|to|contiguous|lift_fresh)$", "no", "no kernel of its own"),
    (r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device|one_shot|two_shot", "no", "a collective between GPUs"),
    (r"memcpy|memset|^dma_request$|^aten::(copy_|to|_to_copy|clone|contiguous)$", "no", "a copy"),
    (r"BatchDecode|decode_kernel|paged_?(decode|attention)|split_?kv|flash_fwd_splitkv|decode_attention|flash_decod", "rules", "attention of few queries"),
    (r"moe_?(sum|align|reduce|permute|unpermute|combine)|topk_?(gating|softmax|sigmoid)|grouped_?topk", "rules", "gating, order and sums of experts"),
    (r"flash|fmha|attention|attn|mha|mla|sdpa|BatchPrefill|prefill_kernel", "model", "attention"),
    (r"moe|grouped_?gemm|GroupedGemm|group_gemm|expert", "model", "mixture of experts"),
    (r"(?<!fb)gemm|gemv|cutlass|cublas|xmma|nvjet|_mm\b|::(mm|addmm|bmm|linear|matmul|baddbmm|einsum)$|Cijk_|wgmma|splitK", "library", "a product of matrices"),
    (r"conv|cudnn|winograd|implicit", "library", "a convolution"),
    (r"unique|nonzero|masked_select", "model", "outputs whose size the values decide"),
    (r"sort|radix|scan|cumsum|cumprod|topk|histogram|bincount|median|kthvalue", "rules", "sorting, scans and selections"),
    (r"rms_?norm|layer_?norm|group_?norm|norm|softmax|cross_?entropy|log_?softmax|argmax|logsumexp", "rules", "rows"),
    (r"quant|per_token|dequant|fp8|scaled_", "rules", "quantisation by rows or groups"),
    (r"rope|rotary|embedding|index|gather|scatter|reshape_and_cache|kv_?cache|store_cache|cat|concat|transpose|permute", "rules", "places by index"),
    (r"reduce|sum|mean|::(max|min|amax|amin|var|std|prod|norm)$", "rules", "reductions"),
    (r"elementwise|vectorized|silu|gelu|swiglu|relu|sigmoid|tanh|act_|activation|mul|add|sub|div|pow|exp|where|fill|triton_poi|triton_per|triton_red|unrolled|dropout|cast|neg|sqrt|clamp|fused",
     "rules", "elements"),
)  # fmt: skip
"""(pattern of a name, who may make it faster here, what kind it is), the first that fits."""
Taken = Literal["rules", "model", "library", "no", "unknown"]
SAID: dict[Taken, str] = {
    "rules": "rules and compiler can write it", "model": "a model can: the rules have no such form",
    "library": "hardly faster: a library's, tuned for this device", "no": "no", "unknown": "unknown: bring it, and `check` says",
}  # fmt: skip
NAMED = {
    "c10::BFloat16": 2, "c10::Half": 2, "float": 4, "double": 8, "int": 4, "long": 8, "long int": 8, "unsigned char": 1, "signed char": 1, "bool": 1,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "short": 2, "short int": 2, **DTYPE_BYTES,
}  # fmt: skip
PRODUCTS = frozenset(("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::matmul", "aten::_scaled_mm"))


@dataclass
class RankedKernel:
    """All calls of one kernel."""

    name: str
    """The kernel's name, as short as it still says what it is."""
    calls: int = 0
    total_us: float = 0.0
    known_us: float = 0.0
    """Microseconds of the calls whose operands' shapes the trace holds."""
    sol_us: float = 0.0
    """Least time of those calls: their inputs read once (and the products' arithmetic), by the device's data sheet."""
    shapes: Counter[str] = field(default_factory=Counter)
    """Operands as `bfloat16[64, 4096]` -> calls."""
    operators: Counter[str] = field(default_factory=Counter)
    """Operators of torch that launched it."""
    taken: Taken = "unknown"
    kind: str = ""
    kernel: str = ""
    """The catalog's kernel that does the same."""

    @property
    def share_of_sol(self) -> float | None:
        """Least time by time, from 0 to 1; None where no call's shapes are known or the device is not."""
        return min(1.0, self.sol_us / self.known_us) if self.known_us and self.sol_us else None

    @property
    def gain_us(self) -> float:
        """Time above the least one, where that is known; all of it else, which is an upper bound. 0 for what nothing here makes faster."""
        if self.taken == "no":
            return 0.0
        return self.total_us * (1 - (self.share_of_sol or 0.0))


@dataclass(frozen=True)
class Ranking:
    """Kernels by what could be gained."""

    device: str
    total_us: float
    """Microseconds of all kernels; they may have run side by side."""
    rows: tuple[RankedKernel, ...]
    on_gpu: bool
    notes: tuple[str, ...]


def rank(path: Path) -> Ranking:
    """Read a trace of torch's profiler, JSON or gzipped JSON. Raises KernelError with one sentence."""
    events, header = _read(path)
    complete = [
        one
        for one in events
        if isinstance(one, dict) and one.get("ph") == "X" and isinstance(one.get("dur"), int | float)
    ]
    kernels = [one for one in complete if str(one.get("cat")).lower() in ON_GPU]
    operators = [one for one in complete if one.get("cat") in ("cpu_op", "Operator", "operator")]
    if not kernels and not operators:
        raise KernelError(
            f"{path} holds no kernels and no operators: it must be a trace that torch.profiler exported (export_chrome_trace)"
        )
    device = str((header.get("deviceProperties") or [{}])[0].get("name", "")) if kernels else "the CPU"
    sheet = next((numbers for name, numbers in DATA_SHEETS.items() if name.lower() in device.lower()), None)
    notes = []
    if kernels and sheet is None:
        notes.append(
            f"{device or 'the device, which the trace does not name,'} is in no data sheet here, so no speed of light is known"
        )
    found: dict[str, RankedKernel] = {}
    of = _Launchers(complete, operators) if kernels else None
    timed = (
        [(one, float(one["dur"]), of.operator(one) if of else one) for one in kernels]
        if kernels
        else _selves(operators)
    )
    for event, us, operator in timed:
        row = found.setdefault(name := short_name(str(event.get("name", "?"))), RankedKernel(name))
        row.calls += 1
        row.total_us += us
        if operator is None:
            continue
        row.operators[str(operator.get("name"))] += 1
        operands = _operands(operator)
        if not operands:
            continue
        row.shapes[" ".join(f"{kind}{list(shape)}" for kind, _size, shape in operands)] += 1
        if sheet is not None and len({id(operator)}) == 1:
            row.known_us += us
            row.sol_us += _least_us(str(operator.get("name")), operands, sheet)
    names = catalog.names()
    for row in found.values():
        _judge(row, names)
    total = sum(row.total_us for row in found.values())
    if not any(row.shapes for row in found.values()):
        notes.append("the trace holds no shapes: profile with record_shapes=True")
    rows = sorted(found.values(), key=lambda row: (-row.gain_us * WORTH[row.taken], -row.total_us))
    return Ranking(device, total, tuple(rows), bool(kernels), tuple(notes))


WORTH: dict[Taken, float] = {"rules": 1.0, "unknown": 0.5, "model": 0.5, "library": 0.05, "no": 0.0}
"""Share of the time above the least possible that counts for the order, by who may take the kernel over."""


def _read(path: Path) -> tuple[list[Any], dict[str, Any]]:
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        held = json.loads(data.decode("utf-8", errors="replace"), strict=False)
    except FileNotFoundError:
        raise KernelError(f"{path} is not there") from None
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise KernelError(f"{path} is no trace in JSON: {str(error)[:200]}") from None
    if isinstance(held, list):
        return held, {}
    if isinstance(held, dict) and "nodes" in held and "traceEvents" not in held:
        raise KernelError(
            f"{path} is an execution trace, which holds no times: rank what torch.profiler exported beside it (export_chrome_trace)"
        )
    if not isinstance(held, dict) or not isinstance(held.get("traceEvents"), list):
        raise KernelError(
            f"{path} has no traceEvents: it must be a trace that torch.profiler exported (export_chrome_trace)"
        )
    return held["traceEvents"], held


def short_name(name: str) -> str:
    """A kernel's name without its parameters and most of its template arguments."""
    name = re.sub(r"\(anonymous namespace\)::|^void |^static |\bat::native::|\bat::", "", name.strip())
    functor = re.search(r"(\w+)(?:Functor|_kernel_cuda|Ops|Op)\b", name)
    head = re.split(r"[<(]", name, maxsplit=1)[0].strip() or name[:60]
    if functor and "elementwise" in head:
        return f"{head} {functor[1]}"[:120]
    return re.sub(r"_\d+(?=_|$)", "", head)[:120] if head.startswith("triton_") else head[:120]


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


class _Launchers:
    """Which operator has launched a kernel: by the id that both carry, else the innermost that ran as its launch was called."""

    def __init__(self, events: Iterable[dict[str, Any]], operators: list[dict[str, Any]]) -> None:
        self.by_id = {_args(one).get("External id", _args(one).get("external id")): one for one in operators}
        self.launches = {
            _args(one).get("correlation"): one
            for one in events
            if one.get("cat") in ("cuda_runtime", "cuda_driver", "runtime", "Runtime", "mtia_runtime")
        }
        self.lanes: dict[Any, tuple[list[float], list[dict[str, Any]]]] = {}
        by_thread = defaultdict(list)
        for one in operators:
            by_thread[one.get("tid")].append(one)
        for thread, ones in by_thread.items():
            ones.sort(key=lambda one: one["ts"])
            self.lanes[thread] = ([float(one["ts"]) for one in ones], ones)

    def operator(self, kernel: dict[str, Any]) -> dict[str, Any] | None:
        args = _args(kernel)
        found = self.by_id.get(args.get("External id", args.get("external id")))
        if found is not None and (args.get("External id") or args.get("external id")):
            return found
        launch = self.launches.get(args.get("correlation"))
        if launch is None or launch.get("tid") not in self.lanes:
            return None
        starts, ones = self.lanes[launch["tid"]]
        at = bisect.bisect_right(starts, float(launch["ts"]))
        for one in reversed(ones[max(0, at - 64) : at]):
            if float(one["ts"]) + float(one["dur"]) >= float(launch["ts"]):
                return one
        return None


def _selves(operators: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float, dict[str, Any] | None]]:
    """Operators of a CPU with the time that they took themselves, without those that they called."""
    by_thread = defaultdict(list)
    for one in operators:
        by_thread[one.get("tid")].append(one)
    found: list[tuple[dict[str, Any], float, dict[str, Any] | None]] = []
    for ones in by_thread.values():
        ones.sort(key=lambda one: (float(one["ts"]), -float(one["dur"])))
        inner = [0.0] * len(ones)
        open_: list[int] = []
        for at, one in enumerate(ones):
            while open_ and float(ones[open_[-1]]["ts"]) + float(ones[open_[-1]]["dur"]) <= float(one["ts"]):
                open_.pop()
            if open_:
                inner[open_[-1]] += float(one["dur"])
            open_.append(at)
        found += [(one, max(0.0, float(one["dur"]) - inner[at]), one) for at, one in enumerate(ones)]
    return found


def _operands(operator: dict[str, Any]) -> list[tuple[str, int, tuple[int, ...]]]:
    """(dtype, bytes an element, shape) of the tensors that an operator was called with."""
    args = _args(operator)
    shapes = args.get("Input Dims", args.get("Input dims", args.get("input_shapes")))
    types = args.get("Input type", args.get("Input Type"))
    if not isinstance(shapes, list):
        return []
    found = []
    for at, shape in enumerate(shapes):
        if isinstance(shape, list) and shape and all(isinstance(extent, int) for extent in shape):
            kind = types[at] if isinstance(types, list) and at < len(types) and isinstance(types[at], str) else ""
            if (size := NAMED.get(kind)) is not None:
                found.append((kind.removeprefix("c10::").lower(), size, tuple(shape)))
    return found


def _least_us(name: str, operands: list[tuple[str, int, tuple[int, ...]]], sheet: tuple[int, int]) -> float:
    """Microseconds that reading the operands takes, and a product's arithmetic."""
    bandwidth, teraflops = sheet
    read = sum(size * math.prod(shape) for _kind, size, shape in operands) / (bandwidth * 1e3)
    if name not in PRODUCTS:
        return read
    matrices = [shape for _kind, _size, shape in operands if len(shape) >= 2]
    if len(matrices) < 2:
        return read
    first, second = matrices[-2:] if name == "aten::addmm" else matrices[:2]
    columns = second[-1] if second[-2:-1] == first[-1:] else second[0]
    return max(read, 2 * math.prod(first) * columns / (teraflops * 1e6))


def _judge(row: RankedKernel, names: list[str]) -> None:
    """Who may make it faster, and by which kernel of the catalog."""
    asked = " ".join((row.name, *(name for name, _ in row.operators.most_common(2))))
    for pattern, taken, kind in OURS:
        if re.search(pattern, row.name, re.IGNORECASE) or (
            row.operators and re.search(pattern, row.operators.most_common(1)[0][0], re.IGNORECASE)
        ):
            row.taken, row.kind = taken, kind  # type: ignore[assignment]
            break
    words = set(
        re.findall(
            r"[a-z0-9]+",
            re.sub(r"(?<=[a-z])(?=[A-Z])", "_", asked)
            .lower()
            .replace("rmsnorm", "rms_norm_rmsnorm")
            .replace("layernorm", "layer_norm"),
        )
    )
    fitting = [name for name in names if set(name.split("_")) <= words]
    row.kernel = max(fitting, key=len, default="")
