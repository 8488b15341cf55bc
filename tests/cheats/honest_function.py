# A function that writes its outputs, without a class.
# Must end in: PASSED
from honest import compute


def silu_and_mul(input, out, tokens, hidden):
    compute(input, out)
