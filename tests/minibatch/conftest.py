import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small are slower on several threads, the more so where tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    """Compiled sources and graphs of these tests, apart from the user's and from other runs'."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTROLABE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
