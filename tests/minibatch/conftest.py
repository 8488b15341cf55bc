import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small are slower on several threads, the more so where tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
