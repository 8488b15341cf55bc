"""What every draft made in a test's process asks PyTorch for anew, asked once."""

import functools
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def operators_listed_once() -> Iterator[None]:
    """torch.export goes through all of PyTorch's operators twice for each module, and gives hundreds of them twenty kernels each,
    whose type it looks at one by one: together half of a small draft."""
    from torch._ops import DispatchKey, OperatorBase
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

    once = functools.cache(exported_program._collect_all_valid_cia_ops)
    with pytest.MonkeyPatch.context() as patch:
        for module in (decomp_utils, exported_program):
            patch.setattr(module, "_collect_all_valid_cia_ops", once)
        patch.setattr(OperatorBase, "py_impl", py_impl)
        yield
