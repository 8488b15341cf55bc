"""What every draft made in a test's process asks PyTorch for anew, asked once."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@pytest.fixture(scope="package", autouse=True)
def operators_listed_once() -> Iterator[None]:
    """torch.export goes through all of PyTorch's operators twice for each module, and gives hundreds of them twenty kernels each,
    whose type it looks at one by one, and takes them away behind it: together half of a small draft."""
    from torch._ops import DispatchKey, OperatorBase
    from torch._subclasses.fake_impls import op_implementations_dict as rules
    from torch.export import decomp_utils, exported_program

    as_it_is = OperatorBase.py_impl

    def py_impl(self, key):
        if not isinstance(key, DispatchKey) or key == DispatchKey.Python or key in self.py_kernels:
            return as_it_is(self, key)

        def put(function):
            self.py_kernels[key] = function
            self._dispatch_cache.clear()
            return function

        return put

    as_torch_does, kept = exported_program._override_composite_implicit_decomp, {}

    @contextmanager
    def override(decompositions):
        """A draft's table has an operator's own decomposition or none: two sets of kernels for each."""
        preserved = exported_program._special_op_to_preserve_cia
        wanted = {operator: (operator, how is preserved) for operator, how in decompositions.items()}
        if new := {operator: decompositions[operator] for operator, key in wanted.items() if key not in kept}:
            with as_torch_does(new):
                kept.update({wanted[operator]: (operator.py_kernels.copy(), rules.get(operator)) for operator in new})
        before = {operator: operator.py_kernels for operator in wanted}
        for operator, key in wanted.items():
            operator.py_kernels, rules[operator] = kept[key]
            operator._dispatch_cache.clear()
        try:
            yield
        finally:
            for operator, kernels in before.items():
                operator.py_kernels = kernels
                operator._dispatch_cache.clear()
                rules.pop(operator, None)

    once = functools.cache(exported_program._collect_all_valid_cia_ops)
    with pytest.MonkeyPatch.context() as patch:
        for module in (decomp_utils, exported_program):
            patch.setattr(module, "_collect_all_valid_cia_ops", once)
        patch.setattr(OperatorBase, "py_impl", py_impl)
        patch.setattr(exported_program, "_override_composite_implicit_decomp", override)
        yield
