# Raises SystemExit, which `except Exception` does not catch.
# Must end in: RUNTIME_ERROR
def silu_and_mul(input, out, tokens, hidden):
    raise SystemExit(0)
