"""A problem's module executed: its Model made, its inputs drawn, and where that fails."""

from __future__ import annotations

import contextlib
import random
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .nest import UnfitProblem, flatten

if TYPE_CHECKING:
    import torch


def construct(namespace: types.ModuleType, model: str, initial: Callable[[], Any], seed: int) -> Any:
    """An instance under the seed, as KernelBench makes it: one seed for its arguments, the same again for its weights."""

    seed_generators(seed)
    arguments = initial()
    seed_generators(seed)
    if isinstance(arguments, dict):
        return getattr(namespace, model)(**arguments)
    return getattr(namespace, model)(*arguments)


def can_make_anywhere(namespace: types.ModuleType) -> bool:
    """Whether Model's constructor works where its tensors hold no values, so that it asks none for its own."""
    import torch

    try:
        with torch.device("meta"):
            construct(namespace, "Model", getattr(namespace, "get_init_inputs", list), 42)
    except Exception:  # noqa: BLE001, it does not: the answer that was asked for
        return False
    return True


def seed_generators(seed: int, *, of_host: bool = True) -> None:
    """Seed torch's generators; `of_host`: Python's and numpy's, too, from which layers are dropped."""
    import torch

    # torch.manual_seed keeps a formatted stack a call for each kind of device that has not begun: 90 us and more, the deeper the longer.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if of_host:
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % (1 << 32))


def generator_states() -> list[Any]:
    """What changes where numbers are drawn on the host."""
    import torch

    of_numpy = sys.modules["numpy"].random.get_state()[1:3] if "numpy" in sys.modules else ()
    state = [str(one) if isinstance(one, int) else one.tobytes() for one in of_numpy]
    return [torch.get_rng_state().tolist(), random.getstate(), *state]


DRAWN_AT_ONCE = 1 << 22
"""Elements that one thread draws from a generator of its own; torch draws all of a tensor in one thread."""


@contextlib.contextmanager
def draw_in_parallel() -> Iterator[None]:
    """Meanwhile torch.rand, torch.randn and their likes fill large tensors by all threads: those of 6 GB take one half a minute."""
    import torch
    from torch.overrides import TorchFunctionMode

    makers: dict[Any, tuple[Any, Any]] = {
        torch.rand: (torch.empty, torch.Tensor.uniform_),
        torch.randn: (torch.empty, torch.Tensor.normal_),
        torch.rand_like: (torch.empty_like, torch.Tensor.uniform_),
        torch.randn_like: (torch.empty_like, torch.Tensor.normal_),
    }

    class Draws(TorchFunctionMode):
        def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if function in makers and not {"generator", "out", "names"} & kwargs.keys():
                make, fill = makers[function]
                tensor = make(*args, **kwargs)
                if (
                    tensor.numel() > DRAWN_AT_ONCE
                    and tensor.is_contiguous()
                    and tensor.device.type == "cpu"
                    and not tensor.is_complex()
                ):
                    return _filled(tensor, fill)
            return function(*args, **kwargs)

    with Draws():
        yield


def _filled(tensor: torch.Tensor, fill: Callable[..., Any]) -> torch.Tensor:
    """The tensor, each part drawn by a generator whose seed torch's own draws."""
    import torch

    parts = tensor.detach().view(-1).split(DRAWN_AT_ONCE)
    seeds = torch.randint(1 << 62, (len(parts),)).tolist()

    def draw(part: torch.Tensor, seed: int) -> None:
        fill(part, generator=torch.Generator().manual_seed(seed))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(draw, parts, seeds))
    return tensor


def inputs(namespace: types.ModuleType, seed: int) -> tuple[list[torch.Tensor], Any]:
    """get_inputs() under a seed: the tensors, contiguous, and the nest that they stand in."""

    seed_generators(seed)
    found: list[torch.Tensor] = []
    with draw_in_parallel():
        given = namespace.get_inputs()
    if not isinstance(given, (list, tuple)):
        raise UnfitProblem(f"get_inputs() returns a {type(given).__name__}, not a list of arguments")
    form = flatten(list(given), found, "get_inputs() returns")
    return [tensor.contiguous() for tensor in found], form


# --- describe --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stage(says: str) -> Iterator[None]:
    """What the problem's own code raises inside, as a sentence that begins so and ends in its last line of the file. Raises UnfitProblem."""
    try:
        yield
    except UnfitProblem:
        raise
    except Exception as error:  # noqa: BLE001, the problem's code raises what it likes
        line, trace = error.lineno if isinstance(error, SyntaxError) else 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename.endswith("problem.py") and trace.tb_frame.f_globals is not globals():
                line = trace.tb_lineno
            trace = trace.tb_next
        why = str(error).partition(" (problem.py, line")[0]
        if any(words in why for words in ("name resolution", "Network is unreachable", "urlopen error")):
            why += "; problems run without a network"
        raise UnfitProblem(f"{says}: {type(error).__name__}: {why}{f' (line {line})' if line else ''}") from None
