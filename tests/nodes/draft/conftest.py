"""What every draft made in a test's process asks PyTorch for anew, asked once."""

import functools
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def operators_listed_once() -> Iterator[None]:
    """torch.export goes through all of PyTorch's operators twice for each module, which takes a third of a small draft."""
    from torch.export import decomp_utils, exported_program

    once = functools.cache(exported_program._collect_all_valid_cia_ops)
    with pytest.MonkeyPatch.context() as patch:
        for module in (decomp_utils, exported_program):
            patch.setattr(module, "_collect_all_valid_cia_ops", once)
        yield
