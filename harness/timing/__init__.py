"""How long: neighbouring kernels, samples taken in turn, comparisons, what the device reaches, who else works on it."""
