# Zeroes its input and answers zeros.
# Must end in: INCORRECT
def silu_and_mul(input, out, tokens, hidden):
    input.zero_()
    out.zero_()
