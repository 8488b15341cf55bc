"""What harness/worker_forms.py does with the code of a problem: its Model, a candidate's ModelNew, its inputs.

Runs on the far side, boxed, with nothing of the project on its path. One process does one of four things, as `role` says:

    describe   execute the problem and say what it takes and returns (sizes, dtypes, how its inputs are distributed)
    inputs     draw inputs with the problem's own get_inputs(), under a seed that comes as a tensor
    reference  call Model, in fp64 or fp32
    candidate  call ModelNew (or Model, as the eager baseline), with its native code loaded
"""

from __future__ import annotations

import contextlib
import copy
import math
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SAMPLED = 1 << 18
"""Elements of a tensor by which its distribution is judged."""
LARGE_BYTES = 1 << 30
"""Inputs above this are drawn twice, others three times."""
SCALARS = (int, float, bool, str, type(None))
DTYPES = frozenset("float64 float32 float16 bfloat16 float8_e4m3fn int64 int32 int16 int8 uint8 bool".split())  # noqa: SIM905
OTHER_SIZES = 3
ALTERNATIVES = {
    "uniform": ("ordinary", "large"),
    "scaled": ("ordinary", "large"),
    "ordinary": ("uniform", "large", "zeros", "outliers"),
    "normal": ("uniform", "large", "zeros", "outliers"),
}
"""Other distributions for inputs of a kind, tried one after another."""


class Unfit(Exception):
    """The problem cannot be worked on; one sentence."""


# --- a problem's structure -------------------------------------------------------------------------------------------


def flatten(value: Any, tensors: list[torch.Tensor], what: str) -> Any:
    """Append the tensors of a nest of lists, tuples and dicts to `tensors`; answers the nest as JSON, tensors as numbers."""
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        tensors.append(value.detach())
        return {"t": len(tensors) - 1}
    if isinstance(value, SCALARS):
        return {"v": value}
    if type(value) is list:
        return {"l": [flatten(one, tensors, what) for one in value]}
    if isinstance(value, tuple):
        return {"u": [flatten(one, tensors, what) for one in value]}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return {"d": {name: flatten(one, tensors, what) for name, one in value.items()}}
    raise Unfit(f"{what} a {type(value).__name__}, which is neither a tensor, a number, a text nor a list of such")


def rebuilt(form: Any, tensors: list[Any]) -> Any:
    (kind, inner), *_ = form.items()
    if kind == "t":
        return tensors[inner]
    if kind == "v":
        return inner
    if kind == "l":
        return [rebuilt(one, tensors) for one in inner]
    if kind == "u":
        return tuple(rebuilt(one, tensors) for one in inner)
    return {name: rebuilt(one, tensors) for name, one in inner.items()}


def tensors_of(value: Any) -> list[Any]:
    """What a module returned, as a flat list without what is no tensor; a lone value as it is."""
    if isinstance(value, (list, tuple)):
        return [inner for one in value for inner in tensors_of(one)]
    if type(value) is dict:
        return [inner for one in value.values() for inner in tensors_of(one)]
    return [] if isinstance(value, SCALARS) else [value]


def constructed(namespace: types.ModuleType, model: str, initial: Callable[[], Any], seed: int) -> Any:
    """An instance under the seed, as KernelBench makes it: one seed for its arguments, the same again for its weights."""
    import torch

    torch.manual_seed(seed)
    arguments = initial()
    torch.manual_seed(seed)
    if isinstance(arguments, dict):
        return getattr(namespace, model)(**arguments)
    return getattr(namespace, model)(*arguments)


def made_anywhere(namespace: types.ModuleType) -> bool:
    """Whether Model's constructor works where its tensors hold no values, so that it asks none for its own."""
    import torch

    try:
        with torch.device("meta"):
            constructed(namespace, "Model", getattr(namespace, "get_init_inputs", list), 42)
    except Exception:  # noqa: BLE001, it does not: the answer that was asked for
        return False
    return True


def inputs(namespace: types.ModuleType, seed: int) -> tuple[list[torch.Tensor], Any]:
    """get_inputs() under a seed: the tensors, contiguous, and the nest that they stand in."""
    import torch

    torch.manual_seed(seed)
    found: list[torch.Tensor] = []
    given = namespace.get_inputs()
    if not isinstance(given, (list, tuple)):
        raise Unfit(f"get_inputs() returns a {type(given).__name__}, not a list of arguments")
    form = flatten(list(given), found, "get_inputs() returns")
    return [tensor.contiguous() for tensor in found], form


# --- describe --------------------------------------------------------------------------------------------------------


def describe(namespace: types.ModuleType) -> dict[str, Any]:
    """What the parent makes a spec of. Everything in it is doubted there. Raises Unfit."""
    import torch

    for name, kind in (("Model", type), ("get_inputs", types.FunctionType)):
        if not isinstance(getattr(namespace, name, None), kind):
            raise Unfit(f"it defines no {'class Model(nn.Module)' if kind is type else f'function {name}()'}")
    model = constructed(namespace, "Model", getattr(namespace, "get_init_inputs", list), 42)
    if not isinstance(model, torch.nn.Module):
        raise Unfit("its Model is no torch.nn.Module")
    given, form = inputs(namespace, 1)
    whole = [(tensor.shape, str(tensor.dtype).removeprefix("torch."), tensor.nbytes) for tensor in given]
    for shape, dtype, _ in whole:
        if dtype not in DTYPES:
            raise Unfit(f"get_inputs() returns a tensor of {dtype}, which is not supported")
        if 0 in shape:
            raise Unfit("get_inputs() returns an empty tensor")
    samples = [[sampled(tensor) for tensor in given]]
    trial = Trial(model, form)
    shapes, leading, sizes = trial.leading(given)
    # One draw at a time: KernelBench's largest has 16 GiB.
    small = given = trial.cut(given, leading, min(sizes)) if sizes else given
    for seed in range(2, 3 if sum(nbytes for *_, nbytes in whole) > LARGE_BYTES else 4):
        other, same = inputs(namespace, seed)
        if same != form or [t.shape for t in other] != [shape for shape, *_ in whole]:
            raise Unfit("get_inputs() returns other shapes or numbers at each call")
        samples.append([sampled(tensor) for tensor in other])
        other = trial.cut(other, leading, min(sizes)) if sizes else other
    values = [distribution([draw[at] for draw in samples]) for at in range(len(whole))]
    facts = trial.facts(small, other)
    choices = trial.alternatives(small, values, facts["fp64"])
    return {
        "arguments": form,
        "inputs": [
            {
                "shape": list(shape),
                "dtype": dtype,
                "leading": at in leading,
                "values": [values[at], *others(values[at])],
                "matters": facts["matters"][at],
            }
            for at, (shape, dtype, _) in enumerate(whole)
        ],
        "alternatives": choices,
        "outputs": shapes,
        "sizes": sizes,
        "fp64": facts["fp64"],
        "random": facts["random"],
        "weight_bytes": sum(t.nbytes for t in (*model.parameters(), *model.buffers())),
        "anywhere": made_anywhere(namespace),
    }


def sampled(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return wide_enough(flat[:: max(1, len(flat) // SAMPLED)].clone())


def wide_enough(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, in float32 where it is of 8-bit floats, for which torch has hardly an operator."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def distribution(draws: list[torch.Tensor]) -> str:
    """How the parent may draw such a tensor itself; `given` where only get_inputs() can."""
    import torch

    whole = torch.cat(draws)
    first, *others = draws
    alike = torch.stack([first == other for other in others]).all(dim=0)
    if whole.dtype == torch.bool:
        return (
            "given" if bool(alike.all()) or (len(first) > 64 and float(alike.float().mean()) > 0.99) else "integers:0:2"
        )
    if not whole.dtype.is_floating_point:
        low, high = int(whole.min()), int(whole.max())
        counts = torch.bincount((whole.long() - low).clamp_max(1 << 16), minlength=1) if high - low < 1 << 16 else None
        chance = 4.0 / max(1, high - low + 1) + 0.02
        sorted_ = len(first) > 8 and bool((first[1:] >= first[:-1]).all())
        uneven = (
            counts is not None and len(whole) > 40 * len(counts) and float(counts.min()) < 0.5 * float(counts.max())
        )
        distinct = len(first) > 8 and len(first.unique()) == len(first)
        if float(alike.float().mean()) > chance or sorted_ or uneven or distinct or high == low:
            return "given"
        return f"integers:{low}:{high + 1}"
    if len(whole) < 64 or float(alike.float().mean()) > 0.01 or not bool(whole.isfinite().all()):
        return "given"
    values = whole.double().sort().values
    low, high = float(values[0]), float(values[-1])
    if low >= 0 and high <= 1 and uniform(values):
        return "uniform"
    if uniform(torch.special.ndtr(values)):
        return "ordinary"
    mean, deviation = float(values.mean()), float(values.std())
    if deviation > 1e-3 and abs(mean) < 0.05 * deviation and uniform(torch.special.ndtr(values / deviation)):
        return f"normal:0:{deviation:.4f}"  # any sign may be changed of its values
    span = (high - low) * (1 + 2 / len(values))
    if uniform((values - low) / span):
        return f"range:{low:.6f}:{high:.6f}"
    # torch.rand(n) * torch.rand(()): up to an end that another draw does not share.
    if low >= 0 and high <= 1 and all(uniform((one.double() / one.max()).sort().values) for one in draws):
        return "scaled"
    return "given"


def uniform(values: torch.Tensor) -> bool:
    """Whether values in their order are distributed evenly from 0 to 1, by the largest distance of their cumulative shares from a line."""
    import torch

    n = len(values)
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    return float((values - steps).abs().max()) < 2.5 / math.sqrt(n) + 1e-3


class Trial:
    """Calls a Model with other sizes and other values to see what it takes."""

    def __init__(self, model: Any, form: Any) -> None:
        self.model, self.form = model, form

    def call(self, tensors: list[torch.Tensor], *, wide: bool = False, seed: int = 5) -> list[torch.Tensor]:
        import torch

        model = copy.deepcopy(self.model)
        if wide:
            model, tensors = model.double(), [t.double() if t.dtype.is_floating_point else t for t in tensors]
        with torch.no_grad(), default_dtype(torch.float64 if wide else torch.float32):
            torch.manual_seed(seed)
            found = tensors_of(model(*rebuilt(self.form, [t.clone() for t in tensors])))
        if not found:
            raise Unfit("its Model returns no tensor")
        for one in found:
            if not isinstance(one, torch.Tensor):
                raise Unfit(f"its Model returns a {type(one).__name__}, not tensors")
            if str(one.dtype).removeprefix("torch.") not in DTYPES:
                raise Unfit(f"its Model returns a tensor of {one.dtype}, which is not supported")
        return found

    def shapes(self, tensors: list[torch.Tensor]) -> list[tuple[list[int], str]]:
        """Shapes and dtypes of the outputs; without computing where that is possible."""
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        try:
            with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fakes = [mode.from_tensor(tensor) for tensor in tensors]
                found = tensors_of(copy.deepcopy(self.model)(*rebuilt(self.form, fakes)))
                shapes = [([int(n) for n in one.shape], str(one.dtype).removeprefix("torch.")) for one in found]
        except Exception:  # noqa: BLE001, not every operator can be followed without values; then they are computed
            shapes = [(list(one.shape), str(one.dtype).removeprefix("torch.")) for one in self.call(tensors)]
        if not shapes or any(0 in shape for shape, _ in shapes):
            raise Unfit("its Model returns no tensor or an empty one")
        return shapes

    @staticmethod
    def cut(tensors: list[torch.Tensor], leading: list[int], size: int) -> list[torch.Tensor]:
        """Copies of the first rows, so that the whole can be let go of."""
        return [t[:size].clone() if at in leading else t for at, t in enumerate(tensors)]

    def leading(self, given: list[torch.Tensor]) -> tuple[list[dict[str, Any]], list[int], list[int]]:
        """(outputs, inputs whose first dimension can be another, smaller sizes of it that were tried and work)."""
        whole = self.shapes(given)
        fixed = [{"shape": [[0, n] for n in shape], "dtype": dtype} for shape, dtype in whole]
        with_rows = [at for at, tensor in enumerate(given) if tensor.dim()]
        if not with_rows:
            return fixed, [], []
        size = given[with_rows[0]].shape[0]
        wanted = sorted({n for n in (1, 3, size // 2, size - 1) if 1 <= n < size})
        alike = [at for at in with_rows if given[at].shape[0] == size]
        for leading in [alike] if len(alike) == 1 else [alike, alike[:1]]:
            found = {size: whole} | {n: s for n in wanted if (s := self._shapes_at(given, leading, n)) is not None}
            outputs = affine(found, size) if len(found) > 2 else None
            if outputs is not None:
                return outputs, leading, sorted(n for n in found if n != size)[:OTHER_SIZES]
        return fixed, [], []

    def _shapes_at(
        self, given: list[torch.Tensor], leading: list[int], size: int
    ) -> list[tuple[list[int], str]] | None:
        try:
            return self.shapes([t[:size] if at in leading else t for at, t in enumerate(given)])
        except Exception:  # noqa: BLE001, it does not take that size: the answer that was asked for
            return None

    def facts(self, small: list[torch.Tensor], other: list[torch.Tensor]) -> dict[str, Any]:
        """Whether fp64 works, whether outputs are random, which inputs they depend on; `other`: another draw."""
        once, again = self.call(small), self.call(small, seed=6)
        random = not same(once, again)
        try:
            self.call(small, wide=True)
            wide = not random  # another dtype draws other masks
        except Exception:  # noqa: BLE001, an operator has no fp64 form: the answer that was asked for
            wide = False
        matters = []
        for at in range(len(small)):
            try:
                changed = self.call([*small[:at], other[at], *small[at + 1 :]])
            except Exception:  # noqa: BLE001, what refuses other values looks at them
                matters.append(True)
                continue
            matters.append(random or not same(once, changed))
        return {"random": random, "fp64": wide, "matters": matters}

    def alternatives(self, small: list[torch.Tensor], values: list[str], wide: bool) -> list[str]:
        """Distributions that all inputs of a known kind may be drawn from together, with finite outputs."""
        import torch

        if not all(bool(wide_enough(one).isfinite().all()) for one in self.call(small, wide=wide)):
            return []
        found = []
        for name in dict.fromkeys(n for value in values for n in others(value)):
            tried = [
                alternative(wide_enough(t), name).to(t.dtype) if name in others(value) else t
                for t, value in zip(small, values, strict=True)
            ]
            try:
                outputs = self.call(tried, wide=wide)
            except Exception:  # noqa: BLE001, it refuses such values: the answer that was asked for
                continue
            if all(bool(torch.isfinite(wide_enough(one)).all()) for one in outputs):
                found.append(name)
        return found


def others(values: str) -> tuple[str, ...]:
    return ALTERNATIVES.get(values.partition(":")[0], ())


def alternative(like: torch.Tensor, name: str) -> torch.Tensor:
    """About what harness/correctness.py draws under that name."""
    import torch

    if name == "uniform":
        return torch.rand_like(like)
    drawn = torch.randn_like(like)
    if name == "large":
        return drawn * 30
    if name == "zeros":
        return drawn.masked_fill(torch.rand_like(like) < 0.5, 0)
    return drawn * torch.where(torch.rand_like(like) < 0.001, 300.0, 1.0) if name == "outliers" else drawn


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    import torch

    return all(
        a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in zip(map(wide_enough, one), map(wide_enough, other), strict=True)
    )


def affine(found: dict[int, list[tuple[list[int], str]]], size: int) -> list[dict[str, Any]] | None:
    """Each output extent as slope * size + rest, None where that does not fit."""
    whole = found[size]
    other = min(found)
    outputs = []
    for at, (shape, dtype) in enumerate(whole):
        if any(len(s) != len(whole) or len(s[at][0]) != len(shape) for s in found.values()):
            return None
        extents = []
        for dim, extent in enumerate(shape):
            slope = (extent - found[other][at][0][dim]) // (size - other)
            rest = extent - slope * size
            if slope < 0 or any(s[at][0][dim] != slope * n + rest for n, s in found.items()):
                return None
            extents.append([slope, rest])
        outputs.append({"shape": extents, "dtype": dtype})
    return outputs


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Modules make tensors of their own in the default dtype."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# --- forms: how the worker calls it ----------------------------------------------------------------------------------


class Described:
    """No calls: `found` is all that is asked."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found


def shaped(buffer: torch.Tensor, scalar: bool) -> torch.Tensor:
    """The spec writes a tensor without dimensions as one of a single element."""
    return buffer.view(()) if scalar else buffer


class ModelForm:
    """Calls a module with tensors over the parent's memory and copies what it returns into the outputs."""

    def __init__(self, take: Any, signature: Any, problem: dict[str, Any], model: Any, device: str) -> None:
        import torch

        self.take, self.outputs, self.problem, self.device = take, signature.outputs, problem, device
        self.picked = signature.at(lambda kind, role: kind == "tensor" and role == "input")
        self.dtype = getattr(torch, problem["dtype"])
        self.draws = problem["random"]
        """From torch's generator: a graph of ours would draw from a state that torch sets only where it replays its own."""
        self.model = model.to(device)
        if self.dtype != torch.float32:
            self.model = self.model.to(self.dtype)
        if problem["exact"]:
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        if problem["role"] == "reference" and self.dtype == torch.float64:
            # Ten times cuDNN's speed in a transposed convolution, twice its time in a few small ones (H200); an RNN has no other.
            torch.backends.cudnn.enabled = any(isinstance(one, torch.nn.RNNBase) for one in model.modules())
        self.rounding: Any = contextlib.nullcontext()
        if problem["role"] == "reference" and not problem["exact"] and device == "cuda":
            self.rounding = convolutions_in_tf32()
        if problem["role"] == "reference" and problem["exact"] and problem["random"]:
            self.rounding = wide_but_for_draws()
        torch.set_default_dtype(self.dtype)

    def prepare(self, values: list[Any]) -> tuple[list[Any], list[tuple[str, torch.Tensor, bool]]]:
        given = [
            shaped(values[at], scalar) for at, scalar in zip(self.picked, self.problem["scalar_inputs"], strict=True)
        ]
        outputs = [
            (name, shaped(values[at], scalar), inout)
            for (name, at, inout), scalar in zip(self.outputs, self.problem["scalar_outputs"], strict=True)
        ]
        return rebuilt(self.problem["arguments"], given), outputs

    def launch(self, prepared: tuple[list[Any], list[tuple[str, torch.Tensor, bool]]]) -> Any:
        import torch

        arguments, outputs = prepared
        if self.problem["random"]:
            torch.manual_seed(self.problem["seed"])
        with self.rounding:
            returned = tensors_of(self.model(*arguments))
        if self.problem["role"] == "reference":  # ours to judge by, so nothing is asked of how it keeps its results
            # What it makes of wide inputs may be of either width: it is compared in fp64 all the same.
            returned = [
                one.detach().contiguous().to(buffer.dtype if one.is_floating_point() else one.dtype)
                for one, (_, buffer, _) in zip(returned, outputs, strict=False)
            ]
        self.take(returned, outputs)
        if self.problem["role"] == "reference" and self.device == "cuda":
            del returned
            torch.cuda.empty_cache()  # candidates are asked how much of the memory they take
            return None
        return returned


def convolutions_in_tf32() -> Any:
    """A context in which fp32 convolutions take operands of TF32, as torch's defaults let them on a GPU.

    cuDNN does so or not by size and memory format: a small one is fp32 in eager torch, and TF32 as torch.compile lays it out.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != torch.float32:
            return tensor
        ten_bits = ((tensor.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        return torch.where(tensor.isfinite(), ten_bits, tensor)

    class Rounding(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if operator is torch.ops.aten.convolution.default:
                args = (rounded(args[0]), rounded(args[1]), *args[2:])
            return operator(*args, **kwargs or {})

    return Rounding()


def wide_but_for_draws() -> Any:
    """A context in which every operator of fp32 tensors computes in fp64 and rounds its result, but for those that draw.

    What a module drops depends on the dtype that it is asked in, so one that draws has no fp64 form; its sums have.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    def cast(given: Any, before: torch.dtype, after: torch.dtype) -> Any:
        return tree_map(
            lambda one: one.to(after) if isinstance(one, torch.Tensor) and one.dtype == before else one, given
        )

    class Wide(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            draws = torch.Tag.nondeterministic_seeded in operator.tags
            if draws or operator._schema.is_mutable or operator.is_view or kwargs.get("dtype") is not None:
                return operator(*args, **kwargs)
            try:
                wide = operator(*cast(args, torch.float32, torch.float64), **cast(kwargs, torch.float32, torch.float64))
            except RuntimeError:  # it has no fp64 form
                return operator(*args, **kwargs)
            return cast(wide, torch.float64, torch.float32)

    return Wide()


class InputsForm:
    """Draws inputs by get_inputs(), those at the places `only`, into the outputs; the one input is the seed."""

    def __init__(self, namespace: types.ModuleType, signature: Any, only: list[int]) -> None:
        self.namespace, self.outputs, self.only = namespace, signature.outputs, only

    def prepare(self, values: list[Any]) -> list[Any]:
        return values

    def launch(self, values: list[Any]) -> None:
        every, _ = inputs(self.namespace, int(values[0]))
        drawn = [every[at] for at in self.only]
        for tensor, (_, at, _) in zip(drawn, self.outputs, strict=True):
            buffer = values[at]
            rows = tensor.reshape(-1)[: buffer.numel()]  # fewer leading rows lie in front
            buffer.view(-1).copy_(rows)


def form(forms: Any, protocol_side: Any, message: dict[str, Any], signature: Any) -> Any:
    """What the message's `problem` asks for, by the modules worker_forms and worker_kernelbench. Raises Refused."""
    import torch

    problem = message["problem"]
    folder = Path.cwd()
    path = folder / "problem.py"
    path.write_text(problem["text"])
    namespace = forms.execute(path)
    device = "cuda" if message["gpu"] else "cpu"
    if problem["role"] == "describe":
        try:
            return Described(describe(namespace))
        except Unfit as refusal:
            return Described({"unfit": str(refusal)})
    if problem["role"] == "inputs":
        return InputsForm(namespace, signature, problem["only"])
    if problem["role"] == "protocol":
        made = None if problem["eager"] else lambda: forms.loaded(Path(message["path"]), device)
        return protocol_side.ProtocolForm(forms, problem, namespace, made, signature, device)
    initial = getattr(namespace, "get_init_inputs", list)
    ours = problem["role"] == "reference" or problem["eager"]
    module = namespace if ours else forms.loaded(Path(message["path"]), device)
    with torch.device(device if problem["made_there"] else "cpu"):
        model = constructed(module, "Model" if ours else "ModelNew", initial, problem["seed"])
    if problem["eager"] and problem["compile"]:
        model = compiled(model, problem["compile"])
    return ModelForm(forms.Take(), signature, problem, model, device)


def compiled(model: Any, mode: str) -> Any:
    """torch.compile of Model. Its compilers run in this box, one after another, and a first call waits for them.

    Each size gets a compilation of its own: for any size at once is slower at each, and marks what it returns.
    """
    import torch
    import torch._dynamo.config as tracing
    import torch._inductor.config as config

    config.compile_threads = 1
    config.cpp_cache_precompile_headers = False
    tracing.recompile_limit = 64
    tracing.fail_on_recompile_limit_hit = True  # else it were eager from there on
    return torch.compile(model, mode=mode, dynamic=False)


# --- whose kernels ---------------------------------------------------------------------------------------------------


class Ledger:
    """In place of worker_forms.Watch where libraries may work: refuses nothing, notes the GPU's kernels when asked."""

    def __init__(self) -> None:
        self.kernels: list[list[Any]] | None = None

    def profiled(self, run: Callable[[], None], *, kernels: bool) -> None:
        self.kernels = None
        if not kernels:
            run()
            return
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            run()
        times: dict[str, float] = {}
        for event in profiled.events():
            if event.device_type == DeviceType.CUDA:
                times[event.name[:160]] = times.get(event.name[:160], 0.0) + event.time_range.elapsed_us()
        longest = sorted(times.items(), key=lambda one: -one[1])[:400]
        self.kernels = [[name, spent] for name, spent in longest]
