"""The far side of KernelBench's own protocol (ScalingIntelligence/KernelBench @ 423217d): one trial, or the timed calls.

As there, Model and ModelNew are made under seed 42; a trial seeds, draws inputs on the CPU, casts and moves them, and calls;
times are of 100 calls with events, after three warm-up calls, the first dropped, 256 MB written before each, gradients on.
Unlike there the inputs of a timed call are none that were there before, and which one's answer is compared is drawn. Model is never called in a candidate's process, nor is it made there: its answers are compared in the parent, and
what of it ModelNew's call depends on there, the state of torch's generator behind Model's, is handed over. On a CPU, which
KernelBench has not, the host's clock is read in place of events.
"""

from __future__ import annotations

import random
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
"""A seed of so much or less stands where the timed calls are to be made, and says which of them are looked at and what they take."""
DRAWN_BYTES = 256 << 20
"""What get_inputs() draws for timed calls anew, at most; from there on what was drawn is scaled, but for the call that is looked at. By
bytes, not seconds: Model's process and the candidate's must have the same."""
SCALED = 0.875
NUDGED = -2
"""Less a trial's seed: its inputs are the next numbers of their type, up or down by chance."""


class ProtocolAdapter:
    """Inputs are the trial's seed and, for ModelNew, torch's generators behind Model's call; outputs the answer, Model's generators,
    some elements of each timed call's answer, and its milliseconds."""

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
        self.precision = getattr(torch, problem["dtype"])
        self.seed(SEED)
        initial = [self.cast(one) for one in getattr(namespace, "get_init_inputs", list)()]
        made = namespace.Model if candidate is None else candidate().ModelNew
        self.seed(SEED)
        self.model = made(*initial).to(device=device, dtype=self.precision)
        self.is_new = candidate is not None

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
        seed = int(values[0])
        elapsed = values[self.outputs[-1][1]]
        if seed <= TIMES:
            taken = self.time_trials(elapsed.numel(), -seed, values)
            elapsed.copy_(self.torch.tensor(taken, dtype=elapsed.dtype))
            return
        apart, seed = seed < 0, NUDGED - seed if seed < 0 else seed
        given = self.draw(seed)
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
        self.require_plain(answer)
        name, at, inout = self.outputs[0]
        buffer = values[at].view(()) if self.problem["scalar_outputs"][0] else values[at]
        self.copier(answer.detach(), [(name, buffer, inout)])

    def require_plain(self, answer: Any) -> None:
        """Raises CandidateRefused for a tensor of a class of its own, which would compute when its clock has stopped."""
        if self.is_new and type(answer) not in (self.torch.Tensor, self.torch.nn.Parameter):
            raise self.forms.CandidateRefused(
                "CHEATED", f"its answer is a {type(answer).__name__}, which may compute when it is looked at"
            )

    def time_trials(self, trials: int, secret: int, values: list[Any]) -> list[float]:
        """Milliseconds of each call of ModelNew, or of Model with the five warm-up calls that its baselines get; the answer of one that
        `secret` draws is handed over, and of each some elements."""
        torch, model, chance = self.torch, self.model, random.Random(secret)
        samples = values[self.outputs[2][1]]
        looked = chance.randint(1, trials)
        given, scale, found = self.draw(SEED), 1.0, list[float]()
        weighs = sum(one.nbytes for one in given if isinstance(one, torch.Tensor))
        places = None
        with torch.enable_grad() if self.is_new else nullcontext():
            # Model's baselines get five; of one with state as many as the candidate's, or their answers are not comparable
            for _ in range(3 if self.is_new or self.problem["state"] else 5):
                model(*given)
                self.wait()
            if self.device == "cuda":
                torch.cuda.empty_cache()
            for trial in range(trials + 1):
                seed, scaled = chance.getrandbits(31), SCALED + (1 - SCALED) * chance.random()
                anew = trial == looked or trial * weighs < DRAWN_BYTES
                given = self.renew(given, self.draw(seed) if anew else None, scaled / scale)
                scale = 1.0 if anew else scaled
                if self.problem["random"]:
                    self.seed(seed)
                self.wait()
                answer = None  # before the next one is made, as there
                taken, answer = self.on_gpu(model, given) if self.device == "cuda" else self.on_cpu(model, given)
                if trial == looked:
                    self.hand_over(answer, values)
                if not trial:
                    continue
                found.append(taken)
                if isinstance(answer, torch.Tensor):
                    self.require_plain(answer)
                    if places is None:
                        drawn = torch.Generator().manual_seed(secret)
                        places = torch.randint(max(1, answer.numel()), samples.shape[1:], generator=drawn).to(
                            answer.device
                        )
                    samples[trial - 1] = answer.detach().take(places).to(samples)
        return found

    def renew(self, given: list[Any], drawn: list[Any] | None, ratio: float) -> list[Any]:
        """The arguments with what was drawn in their memory, or their floats scaled: who keeps answers by the tensor, its address or its
        values has none of these. As tensors that nobody has seen."""
        torch, found = self.torch, list(given)
        with torch.no_grad():
            for at, old in enumerate(given):
                if not isinstance(old, torch.Tensor):
                    continue
                shared = any(stride == 0 and size > 1 for stride, size in zip(old.stride(), old.shape, strict=True))
                if drawn is not None:
                    found[at] = drawn[at] if shared else old.copy_(drawn[at]).detach()
                elif not shared and old.is_floating_point():
                    found[at] = old.mul_(ratio).detach()
        return found

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
        began = time.perf_counter()
        answer = model(*given)
        return (time.perf_counter() - began) * 1e3, answer
