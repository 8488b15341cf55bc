# Turns off whatever observes operators for as long as the framework works: the dispatch modes, and the profiler, which
# it starts again as it was.
# Must end in: CHEATED, RUNTIME_ERROR
import torch
from torch._C import _autograd, _profiler
from torch.utils._python_dispatch import _disable_current_modes


class ModelNew(torch.nn.Module):
    def forward(self, input):
        observed = _autograd._profiler_enabled()
        if observed:
            _autograd._disable_profiler()
        with _disable_current_modes():
            gate, up = input.chunk(2, dim=-1)
            out = torch.nn.functional.silu(gate) * up
        if observed:
            config = _profiler.ProfilerConfig(
                _profiler.ProfilerState.KINETO, False, False, False, False, False, _profiler._ExperimentalConfig(), ""
            )
            wanted = {_profiler.ProfilerActivity.CPU}
            _autograd._prepare_profiler(config, wanted)
            _autograd._enable_profiler(config, wanted, set())
        return out
