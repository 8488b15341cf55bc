# The harness's reference, imported from wherever it may lie.
# Must end in: RUNTIME_ERROR, MISSING_ENTRY, CHEATED
import sys

sys.path += ["/work/main", "/work/main/kernels/silu_and_mul", "/root", "..", "../.."]
from reference import reference


def silu_and_mul(input, out, tokens, hidden):
    out.copy_(reference(input)["out"])
