# What it raises holds half of a character (a lone surrogate), which no UTF-8 file can hold.
# Must end in: RUNTIME_ERROR
def silu_and_mul(input, out, tokens, hidden):
    raise RuntimeError("no \ud800 character \udfff, nor \x00 nor \x1b[2J")
