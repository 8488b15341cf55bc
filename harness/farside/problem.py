"""What harness/farside/forms.py does with the code of a problem: its Model, a candidate's ModelNew, its inputs.

Runs on the far side, boxed, with nothing of the project on its path. One process does one of five things, as `role` says:

    describe   execute the problem and say what it takes and returns (sizes, dtypes, how its inputs are distributed)
    draft      run a package on the problem, which writes its answer into the scratch folder
    inputs     draw inputs with the problem's own get_inputs(), under a seed that comes as a tensor
    reference  call Model, in fp64 or fp32
    candidate  call ModelNew (or Model, as the eager baseline), with its native code loaded
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import random
import runpy
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import module_state as state_side
from .describe import describe
from .nest import UnfitProblem, as_tensor, leaves_of, pick_leaves, rebuilt
from .numerics import convolutions_in_tf32, numbers_as, wide_but_for_draws
from .problem_module import construct, inputs, seed_generators, stage

if TYPE_CHECKING:
    import torch


def draft(package: Path, path: Path, arguments: list[str]) -> dict[str, Any]:
    """Runs `package` as `python -I PACKAGE PROBLEM ARGUMENT...` does, in a process that has imported torch."""
    import torch

    torch.set_grad_enabled(True)  # as it is in a new process
    sys.argv[:] = [str(package), str(path), *arguments]
    runpy.run_path(str(package / "__main__.py"), run_name="__main__")
    return {}


# --- forms: how the worker calls it ----------------------------------------------------------------------------------


class Described:
    """No calls: `found` is all that is asked."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found


def shape_scalar(buffer: torch.Tensor, scalar: bool) -> torch.Tensor:
    """The spec writes a tensor without dimensions as one of a single element."""
    return buffer.view(()) if scalar else buffer


KEPT_BYTES = 256 << 20
"""Bytes of a GPU that a reference keeps for its next call: what it gives back it asks the driver for again, which serves all processes of a host in
turn."""
KEPT_MODULES = 2
"""Modules beside the first that a process keeps: a campaign asks its reference for thousands."""


class ModelAdapter:
    """Calls a module with tensors over the parent's memory and copies what it returns into the outputs.

    Behind the user's inputs come the module's state before the call, and the seed of torch's generator where it draws; behind
    what it returns its state after the call.
    """

    def __init__(
        self,
        forms: Any,
        signature: Any,
        problem: dict[str, Any],
        model: Any,
        device: str,
        another: Callable[[int, str], ModelAdapter] | None = None,
        weights: Callable[[int], dict[str, Any]] = lambda _seed: {},
    ) -> None:
        """`another`: makes the form of a module of the same class under that seed, with such of its weights moved (`move_weights`);
        `weights`: Model's state_dict() under it."""
        import torch

        self.forms, self.signature, self.weights = forms, signature, weights
        self.another = functools.lru_cache(KEPT_MODULES)(another) if another is not None else None
        self.lacks_moved = False
        """Whether it has no weights of the kind that should have been moved."""
        self.copier, self.outputs, self.problem, self.device = forms.OutputCopier(), signature.outputs, problem, device
        self.refused = lambda said: forms.CandidateRefused("WRONG_SHAPE", said)
        self.inputs = signature.at(lambda kind, role: kind == "tensor" and role == "input")
        self.dtype = getattr(torch, problem["dtype"])
        self.model = model.to(device)
        if self.dtype != torch.float32:
            self.model = self.model.to(self.dtype)
        torch.set_default_dtype(self.dtype)
        self.state: Any = None
        if problem["state"]:
            self.state = state_side.ModuleState(
                problem["state"], self.model, device, lambda said: forms.CandidateRefused("INCORRECT", said)
            )
        self.draws = problem["random"] or (self.state is not None and self.state.on_host)
        """Whether a call draws from torch's generator or keeps state in Python: a graph of ours would go on with what
        torch sets only where it replays its own, or with a number that stood still."""
        self.of_host = "random" in problem["text"]
        """Whether a call may draw from Python's or numpy's generators, which takes some microseconds to seed."""
        self.stateful = self.state is not None
        arguments, returns = [{"t": at} for at in range(len(problem["scalar_inputs"]))], next(iter(problem["returns"]))
        usual = problem["role"] == "candidate" and problem["arguments"] == {"l": arguments} and returns == "t"
        self.is_plain = usual and not (self.stateful or problem["random"] or problem["changed"])
        """Whether a call takes its inputs and returns one tensor as they are. Then next to nothing stands around it while it is timed: of small modules it
        was a quarter of the time, which a candidate could leave out."""
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
        if problem["role"] == "reference" and self.dtype == torch.float64 and problem["narrow"]:
            self.rounding = numbers_as(getattr(torch, problem["narrow"]))

    def prepare_strided(self, values: list[Any]) -> Any:
        """`prepare`, with the last two axes of each input exchanged in memory, as a transposed tensor's are."""
        strided = list(values)
        for at in self.inputs[: len(self.problem["scalar_inputs"])]:
            if values[at].dim() > 1:
                strided[at] = values[at].transpose(-1, -2).contiguous().transpose(-1, -2)
        return self.prepare(strided)

    def read_state(self, prepared: Any) -> None:
        """Write the state as it is into what a call would leave it in."""
        *_, views, after = prepared
        self.state.read(views, after)

    def copied(self) -> ModelAdapter:
        """A form of a deep copy of the module. Raises what the module does where it cannot be copied."""
        return ModelAdapter(
            self.forms, self.signature, self.problem, copy.deepcopy(self.model), self.device, weights=self.weights
        )

    @contextlib.contextmanager
    def enter(self, mode: str) -> Iterator[None]:
        """Meanwhile it is called in that mode: EVALUATING, RECORDING, or "", as it was made and without gradients."""
        import torch

        trained = [(one, one.training) for one in self.model.modules()] if mode == EVALUATING else []
        if trained:
            self.model.eval()
        try:
            with torch.set_grad_enabled(mode == RECORDING):
                yield
        finally:
            if trained:
                self.model.train(trained[0][1])
            for one, was in trained:
                one.training = was

    @contextlib.contextmanager
    def load_weights(self, seed: int) -> Iterator[str]:
        """Meanwhile Model's weights of that seed in this module, as load_state_dict() puts them; which of them it has not, or ""."""
        own, given = drop_lazy(self.model.state_dict()), self.weights(seed)
        lacking = next((name for name in given if name not in own or own[name].shape != given[name].shape), "")
        given = {} if lacking else given
        before = {name: own[name].clone() for name in given}
        put_weights(self.model, given)
        try:
            yield lacking
        finally:
            put_weights(self.model, before)

    def prepare(self, values: list[Any]) -> Any:
        scalars = self.problem["scalar_inputs"]
        given = [shape_scalar(values[at], scalar) for at, scalar in zip(self.inputs, scalars, strict=False)]
        hidden = [values[at] for at in self.inputs[len(scalars) :]]
        seed = hidden.pop() if self.problem["random"] else None
        scalars = self.problem["scalar_outputs"]
        outputs = [
            (name, shape_scalar(values[at], scalar), inout)
            for (name, at, inout), scalar in zip(self.outputs, scalars, strict=False)
        ]
        after = [values[at] for _, at, _ in self.outputs[len(scalars) :]]
        before = self.state.prepare(hidden) if self.state else None
        views = self.state.prepare(after) if self.state else None
        return given, outputs, seed, before, views, after

    def launch(self, prepared: Any, *, goes_on: bool = False, is_read: bool = True) -> Any:
        """`goes_on`: with the state that the call before has left. `is_read`: that which it leaves is read."""
        import torch

        given, outputs, seed, before, views, after = prepared
        if before is not None and not goes_on:
            self.state.put(before)
        if seed is not None:
            seed_generators(int(seed), of_host=self.of_host)
        changed = self.problem["changed"]  # copies: the inputs themselves are the parent's
        if self.is_plain:
            answer = self.model(*given)
            if type(answer) is torch.Tensor and not torch.is_grad_enabled():
                self.copier([answer], outputs)
                return [answer]
        else:
            given = [one.clone() if at in changed else one for at, one in enumerate(given)]
            with self.rounding:
                answer = self.model(*rebuilt(self.problem["arguments"], given))
        returned: list[Any] = []
        try:
            pick_leaves(self.problem["returns"], answer, returned)
        except ValueError as fault:
            raise self.refused(str(fault)) from None
        returned += [given[at] for at in changed]
        returned = [as_tensor(one, self.device, self.dtype == torch.float64) for one in returned]
        if torch.is_grad_enabled():
            returned = [one.detach() if isinstance(one, torch.Tensor) else one for one in returned]
        if self.problem["role"] == "reference":  # ours to judge by, so nothing is asked of how it keeps its results
            # What it makes of wide inputs may be of either width: it is compared in fp64 all the same.
            returned = [
                one.detach().contiguous().to(buffer.dtype if one.is_floating_point() else one.dtype)
                for one, (_, buffer, _) in zip(returned, outputs, strict=False)
            ]
        self.copier(returned, outputs)
        if views is not None and is_read:
            self.state.read(views, after)
        if self.problem["role"] == "reference" and self.device == "cuda":
            del returned, answer
            if torch.cuda.memory_reserved() > KEPT_BYTES:  # candidates are asked how much of the memory they take
                torch.cuda.empty_cache()
            return None
        return returned


FIRST_STEPS, LATE_S = 3, 0.5
"""Calls of Model that are always made for a state, and seconds that more of them may take."""


USUAL, PECULIAR = 16, 4.0
"""Calls that say how much one usually changes, and how many times as much makes one peculiar."""


class InputsAdapter:
    """Draws inputs by get_inputs(), those at the places `only`, into the outputs, and states that Model comes to; the one input is
    the seed."""

    def __init__(self, namespace: types.ModuleType, signature: Any, problem: dict[str, Any]) -> None:
        self.namespace, self.outputs, self.only = namespace, signature.outputs, problem["only"]
        self.problem, self.steps = problem, problem["steps"]

    def prepare(self, values: list[Any]) -> list[Any]:
        return values

    def launch(self, values: list[Any]) -> None:
        seed = int(values[0])
        buffers = [values[at] for _, at, _ in self.outputs]
        if self.only:
            every, _ = inputs(self.namespace, seed)
            for at, buffer in zip(self.only, buffers, strict=False):
                rows = every[at].reshape(-1)[: buffer.numel()]  # fewer leading rows lie in front
                buffer.view(-1).copy_(rows)
        if self.steps is not None:
            self._draw_state(seed, buffers[len(self.only) :])

    def _draw_state(self, seed: int, buffers: list[torch.Tensor]) -> None:
        """The state behind so many calls of inputs of their own, of fewer where they take longer than LATE_S or it would not be finite."""
        import torch

        initial, began = getattr(self.namespace, "get_init_inputs", list), time.monotonic()
        model = construct(self.namespace, "Model", initial, self.problem["seed"])
        state = state_side.ModuleState(self.problem["state"], model, "cpu", UnfitProblem)
        views = state.prepare(buffers)
        for step in range(self.steps):
            if step >= FIRST_STEPS:
                if time.monotonic() - began > LATE_S:
                    break
                before = [buffer.clone() for buffer in buffers]
            given, form = inputs(self.namespace, seed + 1 + step)
            with torch.no_grad():
                model(*rebuilt(form, given))
            if step >= FIRST_STEPS - 1:
                state.read(views, buffers)
                if step >= FIRST_STEPS and not all(bool(one.isfinite().all()) for one in buffers):
                    for buffer, finite in zip(buffers, before, strict=True):
                        buffer.copy_(finite)
                    return
        state.read(views, buffers)
        if self.steps > FIRST_STEPS:
            peculiar = find_peculiar(
                lambda: model(*rebuilt(form, given)),
                lambda: state.read(views, buffers),
                buffers,
                seed,
                self.problem["far"],
            )
            for buffer, found in zip(buffers, peculiar, strict=True):
                buffer.copy_(found)


def find_peculiar(
    call: Callable[[], Any], read: Callable[[], None], buffers: list[torch.Tensor], seed: int, calls: int
) -> list[torch.Tensor]:
    """The state before a call that is unlike the others, of so many that go on from each other; one of these, if there are several;
    the last finite state where there is none. `read` writes the state into `buffers`.

    Unlike is a call that changes what is returned, or the state, much more than the ones before it do: what happens at every 512th call
    only is met so by a judged call, which begins from there.
    """
    import torch

    chance, began, found, changes = random.Random(seed), time.monotonic(), 0, list[float]()
    before = chosen = [buffer.clone() for buffer in buffers]
    last: list[torch.Tensor] = []
    returns = False
    for _ in range(calls):
        if time.monotonic() - began > state_side.FAR_S:
            break
        try:
            with torch.no_grad():
                answers = [one.detach() for one in leaves_of(call()) if not one.is_complex()]
            read()
        except Exception:  # noqa: BLE001, a Model that does not go on so far is judged as far as it does
            break
        if sum(one.nbytes for one in (*answers, *buffers)) > state_side.FAR_BYTES:
            break
        now = [one.double() for one in (*answers, *buffers)]
        if not all(bool(one.isfinite().all()) for one in buffers):
            break
        if last and [one.shape for one in now] == [one.shape for one in last]:
            change = sum(
                float((one - other).abs().nan_to_num(0, 0, 0).sum()) for one, other in zip(now, last, strict=True)
            )
            usual = sorted(changes)[len(changes) // 2] if changes else math.inf
            unlike = len(changes) == USUAL and change > PECULIAR * usual + 1e-12
            if unlike and not returns:  # the call behind such a one only returns to what is usual
                found += 1
                if chance.randrange(found) == 0:
                    chosen = before
            returns = unlike
            changes = [*changes, change][-USUAL:]
        last, before = now, [buffer.clone() for buffer in buffers]
    return chosen if found else before


def form(forms: Any, protocol_side: Any, message: dict[str, Any], signature: Any) -> Any:
    """What the message's `problem` asks for, by the modules forms and kernelbench. Raises CandidateRefused."""
    import torch

    problem = message["problem"]
    if not problem.get("compile"):
        # A submodule under torch.compile is eager here: its compilers are programs, which no worker of a candidate may start.
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    folder = Path.cwd()
    path = folder / "problem.py"
    path.write_text(problem["text"])
    device = "cuda" if message["gpu"] else "cpu"
    if problem["role"] == "draft":
        return Described(draft(Path(message["path"]), path, problem["arguments"]))
    if problem["role"] == "describe":
        try:
            with stage("it cannot be imported"):
                namespace = forms.execute(path)
            return Described(describe(namespace, problem["far"]))
        except UnfitProblem as refusal:
            return Described({"unfit": str(refusal)})
    namespace = forms.execute(path)
    if problem["role"] == "inputs":
        return InputsAdapter(namespace, signature, problem)
    if problem["role"] == "protocol":
        theirs = None if problem["eager"] else lambda: forms.load_module(Path(message["path"]), device)
        return protocol_side.ProtocolAdapter(forms, problem, namespace, theirs, signature, device)
    initial = getattr(namespace, "get_init_inputs", list)
    ours = problem["role"] == "reference" or problem["eager"]
    module = namespace if ours else forms.load_module(Path(message["path"]), device)

    def made(seed: int, moved: str = "", another: Callable[[int, str], ModelAdapter] | None = None) -> ModelAdapter:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)  # as the first one was made
        try:
            with torch.device(device if problem["made_there"] else "cpu"):
                model = construct(module, "Model" if ours else "ModelNew", initial, seed)
        finally:
            torch.set_default_dtype(before)
        put = not moved or put_weights(model, move_weights(weights(seed), moved, seed))
        if problem["eager"] and problem["compile"]:
            model = compile_model(model, problem["compile"])
        adapter = ModelAdapter(forms, signature, problem, model, device, another, weights)
        adapter.lacks_moved = not put
        return adapter

    def weights(seed: int) -> dict[str, Any]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            with torch.device(device if problem["made_there"] else "cpu"):
                return drop_lazy(construct(namespace, "Model", initial, seed).state_dict())
        finally:
            torch.set_default_dtype(before)

    return made(problem["seed"], another=made)


EVALUATING, RECORDING = "evaluating", "recording"
"""Modes that a module may be called in: behind eval(), and where gradients are recorded."""
CONSTANT, VARIED = "constant", "varied"
"""Weights that begin as one value all over, as a bias of zeros and a norm's weight of ones, and all others."""


def drop_lazy(weights: dict[str, Any]) -> dict[str, Any]:
    """The others, which have a shape: a lazy layer's have none before its first call."""
    from torch.nn.parameter import is_lazy

    return {name: one for name, one in weights.items() if not is_lazy(one)}


def move_weights(weights: dict[str, Any], which: str, seed: int) -> dict[str, Any]:
    """The floats among Model's weights that are `which`, each a bit larger, as no constructor leaves them."""
    import torch

    chance, found = torch.Generator().manual_seed(seed), {}
    for name, value in weights.items():
        if not value.is_floating_point() or not value.numel():
            continue
        lowest, highest = value.min(), value.max()
        if (CONSTANT if lowest == highest else VARIED) == which and bool(value.isfinite().all()):
            drawn = torch.rand(value.shape, generator=chance, dtype=torch.float32).to(
                value
            )  # in every process the same
            found[name] = value + drawn * (0.5 if which == CONSTANT else 0.5 * (highest - lowest))
    return found


def put_weights(model: Any, weights: dict[str, Any]) -> bool:
    """Whether there is something to put and the module has all of it, by name and shape. A module's own hooks run, as they do for who loads a
    checkpoint."""
    own = drop_lazy(model.state_dict())
    if not weights or any(name not in own or own[name].shape != value.shape for name, value in weights.items()):
        return False
    with contextlib.suppress(Exception):  # a candidate's own way to load them, of which only the outcome counts
        model.load_state_dict(weights, strict=False)
    return True


def compile_model(model: Any, mode: str) -> Any:
    """torch.compile of Model. Its compilers run in this box, one after another, and a first call waits for them.

    Each size gets a compilation of its own: for any size at once is slower at each, and marks what it returns.
    """
    import torch
    import torch._dynamo.config as tracing
    import torch._inductor.config as config

    config.compile_threads = 1
    config.cpp_cache_precompile_headers = False
    # g++ has what the processor says that it has: to try each by a build takes 3 of 13 core-seconds.
    config.cpp.vec_isa_ok = True
    tracing.recompile_limit = 64
    tracing.fail_on_recompile_limit_hit = True  # else it were eager from there on
    return torch.compile(model, mode=mode, dynamic=False)


# --- whose kernels ---------------------------------------------------------------------------------------------------


class Ledger:
    """In place of forms.Watch where libraries may work: refuses nothing, notes the GPU's kernels when asked."""

    def __init__(self) -> None:
        self.kernels: list[list[Any]] | None = None

    def profile(self, run: Callable[[], None], *, kernels: bool) -> None:
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
