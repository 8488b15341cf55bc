"""What torch.export asks of PyTorch's operators anew for each module, asked once: half of a small module's export."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch._ops import DispatchKey, OperatorBase
from torch._subclasses.fake_impls import op_implementations_dict as rules
from torch.export import decomp_utils, exported_program

_list_all = exported_program._collect_all_valid_cia_ops
_override_anew = exported_program._override_composite_implicit_decomp
_put_kernel = OperatorBase.py_impl
_kernels: dict[tuple[OperatorBase, bool], tuple[dict, Any]] = {}
"""(operator, whether it is kept) -> what torch.export gives it during an export: its kernels, and its rule for tensors without data."""


@functools.lru_cache(1)
def _listed(_registered: tuple[str, ...]) -> frozenset[OperatorBase]:
    return frozenset(_list_all())


def _operators() -> frozenset[OperatorBase]:
    """PyTorch's operators that are made of others. To go through them all takes a tenth of a second; a package that is imported, or a
    problem, may register more."""
    return _listed(tuple(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")))


def _py_impl(self: OperatorBase, key: Any) -> Callable[[Any], Any]:
    """Hundreds of operators are given twenty kernels each, whose key torch looks at one by one."""
    if not isinstance(key, DispatchKey) or key == DispatchKey.Python or key in self.py_kernels:
        return _put_kernel(self, key)

    def put(function: Any) -> Any:
        self.py_kernels[key] = function
        self._dispatch_cache.clear()
        return function

    return put


@contextlib.contextmanager
def _override(decompositions: dict[OperatorBase, Callable]) -> Iterator[None]:
    """A draft's table has an operator's own decomposition or none: two sets of kernels for each, kept for the next export."""
    preserved = exported_program._special_op_to_preserve_cia
    wanted = {operator: (operator, how is preserved) for operator, how in decompositions.items()}
    if new := {operator: decompositions[operator] for operator, key in wanted.items() if key not in _kernels}:
        with _override_anew(new):
            _kernels.update({wanted[operator]: (operator.py_kernels.copy(), rules.get(operator)) for operator in new})
    before = {operator: operator.py_kernels for operator in wanted}
    for operator, key in wanted.items():
        operator.py_kernels, rules[operator] = _kernels[key]
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in before.items():
            operator.py_kernels = kernels
            operator._dispatch_cache.clear()
            rules.pop(operator, None)


@contextlib.contextmanager
def asked_once() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module in (decomp_utils, exported_program):
            stack.enter_context(patch.object(module, "_collect_all_valid_cia_ops", _operators))
        stack.enter_context(patch.object(OperatorBase, "py_impl", _py_impl))
        stack.enter_context(patch.object(exported_program, "_override_composite_implicit_decomp", _override))
        yield
