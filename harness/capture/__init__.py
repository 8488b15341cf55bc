"""Record what a running program calls a function with, and make a problem of it that `run.py --kernel FOLDER` takes.

    from harness import capture

    @capture.into("captures/rope")          # written when the process ends, or by rope.save()
    def rope(q, cos, sin, theta=1e4): ...

    with capture.inside(model.ops, "rope", "captures/rope"):    # the same for code that one does not edit
        serve()

Each set of shapes, dtypes, strides and numbers is kept once, with how often it was called and the values of its first call:
of integers and booleans, and of floats that no known distribution describes, the values themselves; of the others how they
are distributed. The folder holds `definition.json` with the function's source as the reference, `workload.jsonl` and
`inputs/` (SOL-ExecBench's form, docs/kernels.md). Outside of the first call of a kind a recorded call costs some
microseconds and no synchronisation.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import inspect
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.capture import source
from harness.capture.form import CapturedForm, Kind, write_definition
from harness.capture.source import CaptureError
from harness.farside.distributions import distribution, take_sample
from harness.farside.nest import tensors_of
from harness.store import write_atomically, write_folder
from kernels.spec import DTYPE_BYTES, check_values

if TYPE_CHECKING:
    import torch

MOST_KINDS = 256
"""Kinds of calls that are kept apart; further ones are only counted."""
MASKED = 0.5
"""Share of equal values from which on a float input counts as a mask or a padding, whose places matter."""
STORED = "stored"
NO_SAFETENSORS = (
    "capture keeps values of inputs by the package safetensors, which is not installed: pip install safetensors"
)


class Recorder:
    """A function that records what it is called with. Calls go through unchanged, whatever is found out about them."""

    __name__: str  # by functools.update_wrapper

    def __init__(
        self,
        function: Callable[..., Any],
        folder: str | Path,
        *,
        values: Mapping[str, str] | None = None,
        axes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """`values`: input -> how it is drawn later, a distribution of kernels.spec or `stored`, where not as found out.
        `axes`: tensor -> names of its dimensions. Raises CaptureError without safetensors."""
        if importlib.util.find_spec("safetensors") is None:  # now, and not after hours of recording
            raise CaptureError(NO_SAFETENSORS)
        self.function, self.folder = function, Path(folder).resolve()
        self.values, self.axes = dict(values or {}), dict(axes or {})
        for name, said in self.values.items():
            if said != STORED:
                check_values(said)
            if name not in inspect.signature(function).parameters:
                raise ValueError(f"{function.__name__} has no argument {name!r}")
        self.kinds: dict[Any, Kind] = {}
        self.left_out: Counter[str] = Counter()
        """Why calls could not be recorded, and how many."""
        self._lock = threading.Lock()
        self._signature = inspect.signature(function)
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        import torch

        if torch.compiler.is_compiling():
            return self.function(*arguments, **named)
        try:
            bound = self._signature.bind(*arguments, **named)
        except TypeError:
            return self.function(*arguments, **named)  # which says it best
        bound.apply_defaults()
        with self._lock:
            kind = self._seen(bound.arguments)
        before = {
            n: v._version for n, v in bound.arguments.items() if isinstance(v, torch.Tensor) and not v.is_inference()
        }
        returned = self.function(*arguments, **named)
        if kind is not None:
            changed = [name for name, version in before.items() if bound.arguments[name]._version != version]
            with self._lock:
                self._returned(kind, returned, changed)
        return returned

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _seen(self, arguments: dict[str, Any]) -> Kind | None:
        """Count a call, and look at its inputs where it is the first of its kind. None where it cannot be recorded."""
        import torch

        forms, numbers = {}, {}
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                if fault := _unfit(name, value):
                    self.left_out[fault] += 1
                    return None
                forms[name] = _form(value)
            elif source.literal(value) is None:
                self.left_out[f"argument {name} is a {type(value).__name__}, neither a tensor nor a number"] += 1
                return None
            else:
                numbers[name] = value
        if not forms:
            self.left_out["it was called without a tensor"] += 1
            return None
        key = (tuple(forms.items()), tuple((name, repr(value)) for name, value in numbers.items()))
        kind = self.kinds.get(key)
        if kind is None:
            if len(self.kinds) >= MOST_KINDS:
                self.left_out[f"more than {MOST_KINDS} kinds of calls"] += 1
                return None
            kind = self.kinds[key] = Kind(forms, numbers)
            for name in forms:
                tensor = arguments[name].detach()
                kind.values[name] = self.values.get(name) or distribution_of(tensor)
                if kind.values[name] == STORED:
                    kind.kept[name] = tensor.to("cpu", copy=True).contiguous()
        kind.count += 1
        return kind

    def _returned(self, kind: Kind, returned: Any, changed: list[str]) -> None:
        import torch

        outputs = tensors_of(returned)
        fault = ""
        if changed:
            fault = f"it changes its argument {changed[0]} in place"
        elif not outputs or any(not isinstance(one, torch.Tensor) for one in outputs):
            fault = f"it returns a {type(returned).__name__}, not tensors"
        else:
            fault = next((said for one in outputs if (said := _unfit("what it returns", one))), "")
        forms = () if fault else tuple(_form(one) for one in outputs)
        if (
            not fault
            and kind.outputs
            and [(f.shape, f.dtype) for f in forms] != [(f.shape, f.dtype) for f in kind.outputs]
        ):
            fault = "its outputs have other shapes at the same inputs' shapes"
        if fault:
            self.left_out[fault] += kind.count
            self.kinds = {key: other for key, other in self.kinds.items() if other is not kind}
            return
        kind.outputs = forms

    def report(self) -> str:
        """What was called, most often first, one line each; then what could not be recorded."""
        lines = []
        for kind in sorted(self.kinds.values(), key=lambda kind: -kind.count):
            said = [
                f"{name} {form.dtype}{list(form.shape)}{'' if form.contiguous else f' strides {list(form.strides)}'} "
                f"{kind.values[name]}"
                for name, form in kind.tensors.items()
            ]
            said += [f"{name}={value!r}" for name, value in kind.numbers.items()]
            lines.append(f"{kind.count} x {', '.join(said)}")
        lines += [f"{count} not recorded: {reason}" for reason, count in self.left_out.items()]
        return "\n".join(lines)

    def save(self) -> Path:
        """Write the folder anew and answer its path. Raises CaptureError where no problem can be made of what was seen."""
        with self._lock:
            kinds = [kind for kind in self.kinds.values() if kind.outputs]
        if not kinds:
            why = "; ".join(self.left_out) or ("every call of it failed" if self.kinds else "it was never called")
            raise CaptureError(f"nothing of {self.__name__} was recorded: {why}")
        kinds.sort(key=lambda kind: -kind.count)
        definition, lines, stored = write_definition(self, kinds)
        if (there := self.folder / "definition.json").exists() and "captured" not in json.loads(there.read_text()):
            raise CaptureError(f"{there} was not made by capture: name another folder")
        from safetensors.torch import save_file

        with write_folder(self.folder) as made:
            for name, tensors in stored.items():
                (made / name).parent.mkdir(exist_ok=True)
                save_file(tensors, made / name)
            write_atomically(made / "workload.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
            write_atomically(made / "definition.json", json.dumps(definition, indent=1) + "\n")
            if not stored:
                shutil.rmtree(self.folder / "inputs", ignore_errors=True)
        return self.folder


def into(
    folder: str | Path, *, values: Mapping[str, str] | None = None, axes: Mapping[str, tuple[str, ...]] | None = None
) -> Callable[[Callable[..., Any]], Recorder]:
    """Decorator: the function, recorded; its folder is written when the process ends. Arguments: see Recorder."""

    def decorate(function: Callable[..., Any]) -> Recorder:
        recorder = Recorder(function, folder, values=values, axes=axes)
        atexit.register(_at_exit, recorder)
        return recorder

    return decorate


@contextmanager
def inside(
    module: ModuleType | type, name: str, folder: str | Path, *, values: Mapping[str, str] | None = None,
    axes: Mapping[str, tuple[str, ...]] | None = None,
) -> Iterator[Recorder]:  # fmt: skip
    """`module.name` is recorded inside, and its folder written at the end. What was imported by its name before is not."""
    before = getattr(module, name)
    recorder = Recorder(before, folder, values=values, axes=axes)
    setattr(module, name, recorder)
    try:
        yield recorder
    finally:
        setattr(module, name, before)
    recorder.save()


def _at_exit(recorder: Recorder) -> None:
    import sys

    try:
        print(f"capture: {recorder.__name__} is in {recorder.save()}", file=sys.stderr)
    except (CaptureError, OSError) as error:
        print(f"capture: {error}", file=sys.stderr)


def _form(tensor: torch.Tensor) -> CapturedForm:
    return CapturedForm(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tuple(tensor.stride()))


def _unfit(name: str, tensor: torch.Tensor) -> str:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"argument {name} is a {type(tensor).__name__} of layout {tensor.layout}"
    if dtype not in DTYPE_BYTES:
        return f"argument {name} is of dtype {dtype}, which is not supported"
    return f"argument {name} is empty" if tensor.numel() == 0 else ""


def distribution_of(tensor: torch.Tensor) -> str:
    """How such an input may be drawn later; `stored` where its own values are needed."""
    if not tensor.dtype.is_floating_point:
        return STORED
    sample = take_sample(tensor).cpu()
    if sample.dtype.itemsize == 1:  # torch orders no float8
        sample = sample.float()
    half = len(sample) // 2
    if half and float((sample == sample.mode().values).float().mean()) > MASKED:
        return STORED
    found = distribution([sample[:half], sample[half : 2 * half]]) if half else "given"
    return STORED if found == "given" else found
