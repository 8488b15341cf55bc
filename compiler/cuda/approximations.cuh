// Functions of results of 16 bits or fewer; prelude.cuh brings what they call.

// exp and 1 / x where results are rounded to 16 bits or fewer: a multiplication and one instruction, without the care for numbers below
// 2^-126, which become zero.
[[maybe_unused]] __device__ __forceinline__ float fast_exp(float value) {
#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value * 1.44269504f));
    return power;
#else
    return __expf(value);
#endif
}

[[maybe_unused]] __device__ __forceinline__ float fast_reciprocal(float value) {
#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(value));
    return reciprocal;
#else
    return __fdividef(1.0f, value);
#endif
}

// exp(x) - 1 and log(1 + x) there: near zero by their series, to 2e-6 of them.
[[maybe_unused]] __device__ __forceinline__ float fast_expm1(float x) {
    const float near = x * (1.0f + x * (0.5f + x * (0.166666667f + x * (0.0416666667f + x * 0.00833333333f))));
    return fabsf(x) < 0.25f ? near : fast_exp(x) - 1.0f;
}
[[maybe_unused]] __device__ __forceinline__ float fast_log1p(float x) {
    const float near = x * (1.0f - x * (0.5f - x * (0.333333333f - x * (0.25f - x * (0.2f - x * 0.166666667f)))));
    return fabsf(x) < 0.125f ? near : __logf(1.0f + x);
}
