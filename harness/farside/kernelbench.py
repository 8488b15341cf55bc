"""The far side of KernelBench's own protocol (ScalingIntelligence/KernelBench @ 423217d): one trial, or the timed calls.

As there, Model and ModelNew are made under seed 42; a trial seeds, draws inputs on the CPU, casts and moves them, and calls;
times are of 100 calls with events, after three warm-up calls, the first dropped, 256 MB written before each, gradients on.
Unlike there the inputs of a timed call are none that were there before, and its answer is compared, too, where only the parent knows. Inputs of
timed calls are made in Model's process, and lie in the candidate's when it is asked for the call: it neither knows them before, nor has it time in
which they are made. Model is never called in a candidate's process, nor is it made there: its answers are compared in the parent, and
what of it ModelNew's call depends on there, the state of torch's generator behind Model's, is handed over. On a CPU, which
KernelBench has not, the host's clock is read in place of events.
"""

from __future__ import annotations

import time
import types
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

SEED = 42
FLUSHED = (32, 1024, 1024)
"""int64: 256 MB."""
TIMES = -(1 << 40)
"""Stands in a seed's place where timed calls begin; behind it come as often NEXT, where Model's process makes the inputs of the next one, and CALL,
where it is to be made. Beside these two stands the seed of its inputs, or of its call."""
NEXT, CALL = TIMES + 1, TIMES + 2
ALIGNED = 256
DRAWN_BYTES = 256 << 20
"""What get_inputs() draws for timed calls anew, at most, where there are floats; from there on these are scaled, each element by itself. By
bytes, not seconds: Model's process and the candidate's must have the same."""
SCALED, PATTERN, PARTS = 0.875, (1 << 20) - 3, 16
"""The least factor, and how many there are at most: their number divides no row's length. A tensor has at least PARTS times as many elements, if it
has so many. Where its elements do not depend on each other some are changed for those of another draw, and in parts as long as the factors it is put into another
order: what only the signs of the inputs say were the same in each call. How many factors there are is drawn for each call: sums of what is scaled alike, which no
order of the parts changes, were kept."""
NUDGED = -2
"""Less a trial's seed: its inputs are the next numbers of their type, up or down by chance."""


def part_of(tensor: Any) -> Any:
    """The tensor, of axes along which it is one element expanded that one alone."""
    of_one = (stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return tensor[tuple(slice(0, 1) if shared else slice(None) for shared in of_one)]


def room_of(value: Any) -> int:
    """Bytes that an argument takes where the inputs of timed calls lie; 0 for what is no tensor."""
    part = part_of(value) if hasattr(value, "stride") else None
    return 0 if part is None else -(-part.numel() * part.itemsize // ALIGNED) * ALIGNED


class ProtocolAdapter:
    """Inputs are the trial's seed (or what is asked, and a seed) and, for ModelNew, torch's generators behind Model's call; outputs the answer,
    Model's generators, a timed call's milliseconds (of a trial the bytes that its inputs need), and the bytes in which the inputs of timed calls
    lie."""

    clock = staticmethod(time.perf_counter)  # before a candidate is loaded, which may replace the module's

    def __init__(
        self,
        forms: Any,
        problem: dict[str, Any],
        namespace: types.ModuleType,
        candidate: Any,
        signature: Any,
        device: str,
    ) -> None:
        import torch

        self.torch, self.namespace, self.device, self.problem = torch, namespace, device, problem
        self.forms, self.copier, self.outputs = forms, forms.OutputCopier(), signature.outputs
        self.detach, self.fill, self.clone = (
            getattr(torch._C.TensorBase, name) for name in ("detach", "fill_", "clone")
        )
        """Taken before a candidate is loaded, as the copier takes its own: a method of the tensor that it returns, or of all tensors, would do the
        work before the clock or behind it."""
        self.precision = getattr(torch, problem["dtype"])
        self.seed(SEED)
        initial = [self.cast(one) for one in getattr(namespace, "get_init_inputs", list)()]
        made = namespace.Model if candidate is None else candidate().ModelNew
        self.seed(SEED)
        self.model = made(*initial).to(device=device, dtype=self.precision)
        self.is_new = candidate is not None
        self.given: list[Any] = []
        self.patterns: list[Any] = []
        """The factors that `given` has now, of each tensor that has some."""
        self.others: list[Any] = []
        """Another draw, whose elements change places with those of `given`, once these are no longer drawn anew."""

    def seed(self, number: int) -> None:
        self.torch.manual_seed(number)
        if self.device == "cuda":
            self.torch.cuda.manual_seed(number)

    def generators(self, size: int) -> Any:
        """The states of torch's generators, uint8 [size]: the host's, then the device's."""
        states = [self.torch.get_rng_state(), *([self.torch.cuda.get_rng_state()] if self.device == "cuda" else [])]
        whole = self.torch.cat(states)
        return self.torch.nn.functional.pad(whole, (0, size - len(whole)))

    def set_generators(self, states: Any) -> None:
        states = states.cpu()
        if not bool(states.any()):  # nobody has called Model: Triton's kernels are compiled
            return
        own = len(self.torch.get_rng_state())
        self.torch.set_rng_state(states[:own].clone())
        if self.device == "cuda":
            self.torch.cuda.set_rng_state(states[own : own + len(self.torch.cuda.get_rng_state())].clone())

    def cast(self, value: Any) -> Any:
        return value.to(dtype=self.precision).to(device=self.device) if isinstance(value, self.torch.Tensor) else value

    def draw(self, seed: int) -> list[Any]:
        self.seed(seed)
        return [self.cast(one) for one in self.namespace.get_inputs()]

    def nudge(self, values: list[Any], seed: int) -> list[Any]:
        torch, chance = self.torch, self.torch.Generator(self.device).manual_seed(seed)

        def one(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                return value
            up = torch.empty(value.shape, dtype=torch.bool, device=value.device).random_(generator=chance)
            ends = torch.tensor([-torch.inf, torch.inf], dtype=value.dtype, device=value.device)
            return torch.nextafter(value, torch.where(up, ends[1], ends[0]))

        return [one(value) for value in values]

    def wait(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def prepare(self, values: list[Any]) -> list[Any]:
        return values

    def launch(self, values: list[Any]) -> None:
        seed, of_call = map(int, values[0].tolist())
        if seed == TIMES:
            self.begin_trials(values[self.outputs[3][1]])
        elif seed == NEXT:
            self.renew_inputs(of_call)
        elif seed == CALL:
            self.time_trial(values, of_call)
        else:
            self.call(values, seed)

    def call(self, values: list[Any], seed: int) -> None:
        apart, seed = seed < 0, NUDGED - seed if seed < 0 else seed
        given = self.draw(seed)
        self.fill(values[self.outputs[2][1]], sum(map(room_of, given)))
        given = self.nudge(given, seed) if apart else given
        self.seed(seed)
        drew = values[self.outputs[1][1]] if not self.is_new else values[1]
        if self.is_new:
            self.set_generators(drew)
        with self.torch.no_grad():
            answer = self.model(*given)
            self.wait()
        if not self.is_new:
            drew.copy_(self.generators(len(drew)))
        self.hand_over(answer, values)

    def hand_over(self, answer: Any, values: list[Any]) -> None:
        if not isinstance(answer, self.torch.Tensor):
            raise AttributeError(f"'{type(answer).__name__}' object has no attribute 'shape'")  # all that it compares
        name, at, inout = self.outputs[0]
        buffer = values[at].view(()) if self.problem["scalar_outputs"][0] else values[at]
        if self.is_new:
            self.copier.require_tensor(answer, name, buffer)
        self.copier(self.detach(answer), [(name, buffer, inout)])

    def begin_trials(self, room: Any) -> None:
        """Warm-up calls, before the calls that are timed. room: uint8, where the inputs of these lie from now on."""
        self.trial, self.patterns, self.others = 0, [], []
        self.unordered: set[int] = set()
        """Places of inputs whose elements do not depend on each other."""
        self.given = self.place(self.draw(SEED), room)
        if len(self.given) == len(self.problem["independent"]):
            self.unordered = {at for at, one in enumerate(self.problem["independent"]) if one}
        with self.gradients():
            # Model's baselines get five; of one with state as many as the candidate's, or their answers are not comparable
            for _ in range(3 if self.is_new or self.problem["state"] else 5):
                self.model(*self.given)
                self.wait()
        if self.device == "cuda":
            self.torch.cuda.empty_cache()

    def place(self, drawn: list[Any], room: Any) -> list[Any]:
        """The same arguments, the tensors in that memory, in the same places in Model's process as in the candidate's."""
        placed, at, self.parts = list(drawn), 0, list(drawn)
        for number, one in enumerate(drawn):
            if isinstance(one, self.torch.Tensor):
                part = part_of(one)
                strides = self.torch.empty_like(part).stride()  # its own, unless elements share memory
                flat = room[at : at + part.numel() * part.itemsize].view(part.dtype)
                self.parts[number] = flat.as_strided(part.shape, strides).copy_(part)
                placed[number] = self.parts[number].expand(one.shape)
                at += room_of(one)
        return placed

    def renew_inputs(self, seed: int) -> None:
        """What the next timed call takes. In Model's process."""
        weighs = sum(map(room_of, self.given))
        floats = any(isinstance(one, self.torch.Tensor) and one.is_floating_point() for one in self.parts)
        anew = self.trial * weighs < DRAWN_BYTES or not floats  # indices alone cannot be scaled
        self.renew(self.draw(seed) if anew else None, seed)
        self.trial += 1
        self.wait()

    def time_trial(self, values: list[Any], seed: int) -> None:
        """One call by the clock, its answer handed over. Which ones are looked at, and where, this process is not told."""
        if self.problem["random"]:
            self.seed(seed)
        given = [self.detach(one) if isinstance(one, self.torch.Tensor) else one for one in self.given]
        with self.gradients():
            timed = self.on_gpu if self.device == "cuda" else self.on_cpu
            taken, answer = timed(self.model, given)
        self.fill(values[self.outputs[2][1]], taken)
        self.hand_over(answer, values)

    def gradients(self) -> Any:
        return self.torch.enable_grad() if self.is_new else nullcontext()

    def renew(self, drawn: list[Any] | None, pattern: int) -> None:
        """Puts what was drawn into the arguments' memory, or their floats each times a factor of its own: who keeps answers by the tensor,
        its address or its values, or finds that one is a multiple of another, has none of these."""
        before, self.patterns = self.patterns, []
        if drawn is None and self.unordered and not self.others:
            self.others = [self.torch.empty_like(part).copy_(part_of(one)) if at in self.unordered and isinstance(one, self.torch.Tensor) else None
                           for at, (part, one) in enumerate(zip(self.parts, self.draw(pattern), strict=True))]  # fmt: skip
        with self.torch.no_grad():
            for at, old in enumerate(self.parts):
                if not isinstance(old, self.torch.Tensor):
                    continue
                if drawn is not None:
                    old.copy_(part_of(drawn[at]))
                elif old.is_floating_point():
                    factors = self.draw_factors(old, pattern + at)
                    self.patterns.append(factors)
                    if before:
                        self.scale(old, 1 / before.pop(0))
                    if at in self.unordered:
                        self.mix(old, self.others[at], len(factors), pattern + at)
                        self.reorder(old, len(factors), pattern + at)
                    self.scale(old, factors)

    def draw_factors(self, like: Any, seed: int) -> Any:
        """Numbers from SCALED to 1, as many as the tensor has or PATTERN at most, and half as many at least."""
        chance, most = self.torch.Generator(like.device).manual_seed(seed), min(max(like.numel() // PARTS, 1), PATTERN)
        count = most - seed % max(1, most // 2)
        count -= count > 1 and count % 2 == 0  # rows are of even lengths
        return SCALED + (1 - SCALED) * self.torch.rand(count, generator=chance, device=like.device)

    def mix(self, value: Any, other: Any, count: int, seed: int) -> None:
        """Changes about half of the elements, the same of each `count`, for the other's in their places."""
        chance = self.torch.Generator(value.device).manual_seed(seed)
        chosen = self.torch.rand(2, count, generator=chance, device=value.device)[1] < 0.5  # the first are the factors
        if value.is_contiguous():
            one, two = (tensor.view(-1)[: value.numel() // count * count].view(-1, count) for tensor in (value, other))
            held = self.torch.where(chosen, two, one)
            two.copy_(self.torch.where(chosen, one, two))
            one.copy_(held)

    def reorder(self, value: Any, count: int, seed: int) -> None:
        """Changes parts of so many elements for each other: every factor stays with its elements."""
        if not value.is_contiguous():
            return
        parts = value.view(-1)[: value.numel() // count * count].view(-1, count)
        order = self.torch.randperm(len(parts), generator=self.torch.Generator().manual_seed(seed)).tolist()
        for one, other in zip(order[::2], order[1::2], strict=False):
            held = parts[one].clone()
            parts[one].copy_(parts[other])
            parts[other].copy_(held)

    def scale(self, value: Any, factors: Any) -> None:
        flat, count = value.reshape(-1), len(factors)
        whole = flat.numel() // max(1, count) * count
        flat[:whole].view(-1, max(1, count)).mul_(factors)
        flat[whole:].mul_(factors[: flat.numel() - whole])
        if not value.is_contiguous():
            value.copy_(flat.view(value.shape))

    def on_gpu(self, model: Any, given: list[Any]) -> tuple[float, Any]:
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        flushed = self.torch.empty(FLUSHED, dtype=self.torch.int64, device="cuda")
        flushed.fill_(42)
        del flushed
        start.record()
        answer = model(*given)
        stop.record()
        self.wait()
        return start.elapsed_time(stop), answer

    def on_cpu(self, model: Any, given: list[Any]) -> tuple[float, Any]:
        """A candidate's answer that is not laid out as an output is copied in its time, as in our own verdict: what it takes beside its clock is held
        against what Model takes."""
        began = self.clock()
        answer = model(*given)
        if self.is_new and isinstance(answer, self.torch.Tensor) and not self.copier.is_plain(answer):
            answer = self.clone(answer, memory_format=self.torch.contiguous_format)
        return (self.clock() - began) * 1e3, answer
