#pragma once

// Absolute error about 1e-7; the ends are exact: e^(2x) overflows to infinity and vanishes to 0.
__device__ __forceinline__ float fast_tanh(float x) { return 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * x)); }
