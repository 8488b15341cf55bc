# Every clock of the process runs a third slower.
# Must end in: CHEATED, PASSED
import time

from honest import compute

_ns, _s = time.perf_counter_ns, time.perf_counter
_ns0, _s0 = _ns(), _s()
time.perf_counter_ns = lambda: _ns0 + (_ns() - _ns0) * 2 // 3
time.perf_counter = lambda: _s0 + (_s() - _s0) * 2 / 3


def silu_and_mul(input, out, tokens, hidden):
    compute(input, out)
