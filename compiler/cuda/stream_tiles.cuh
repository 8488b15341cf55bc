// Keys and values that stream by and are multiplied by tensor cores; products of 16 by 16 and 16 by 8 halves, eight queries at a time.

// A pack of halves as the words that tensor cores take; zeros where it `is_one` not.
template <typename T>
__device__ __forceinline__ void words_of(const Pack<T, 8>& pack, unsigned (&words)[4], bool is_one = true) {
    memcpy(words, &pack, sizeof(words));
#pragma unroll
    for (int at = 0; at < 4; ++at) {
        words[at] = is_one ? words[at] : 0;
    }
}

// The lower halves of two words, and the upper ones.
__device__ __forceinline__ unsigned lower_halves(unsigned first, unsigned second) { return (first & 0xffffu) | second << 16; }
__device__ __forceinline__ unsigned upper_halves(unsigned first, unsigned second) { return first >> 16 | (second & 0xffff0000u); }

// 16 x 8 sums += 16 x 16 of the left times 16 x 8 of the right.
template <typename T>
__device__ __forceinline__ void multiply_halves(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1);
template <>
__device__ __forceinline__ void multiply_halves<__half>(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply_halves<__nv_bfloat16>(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Weights of two keys, each as two halves: what rounding leaves of it is the second.
template <typename T>
__device__ __forceinline__ void split_weights(float first, float second, unsigned& upper, unsigned& lower) {
    const T high[2] = {to<T>(first), to<T>(second)};
    const T low[2] = {to<T>(first - to_float(high[0])), to<T>(second - to_float(high[1]))};
    memcpy(&upper, high, sizeof(upper));
    memcpy(&lower, low, sizeof(lower));
}

// Of a warp's eight by eight halves, two of a row to a lane: two of a column.
__device__ __forceinline__ unsigned turned_halves(unsigned two) {
#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
    unsigned turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(two));
    return turned;
#else
    const int column = threadIdx.x % 32 / 4, row = threadIdx.x % 4 * 2;
    const unsigned first = __shfl_sync(0xffffffffu, two, row * 4 + column / 2), second = __shfl_sync(0xffffffffu, two, row * 4 + 4 + column / 2);
    return column % 2 != 0 ? upper_halves(first, second) : lower_halves(first, second);
#endif
}
