#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#if !defined(WITHOUT_FP8)
#include <cuda_fp8.h>
#endif
#include <stdint.h>

// Neighbouring elements, moved by loads and stores of at most 16 bytes.
template <typename T, int Items>
struct alignas(sizeof(T) * Items < 16 ? sizeof(T) * Items : 16) Pack {
    T at[Items];
};

template <int Items, typename T>
__device__ __forceinline__ Pack<T, Items> load_pack(const T* from) {
    return *reinterpret_cast<const Pack<T, Items>*>(from);
}

// Packs of `Each` from the element `first` on, those that lie among the `count` there are.
template <int Items, int Each, typename T, typename Place>
__device__ __forceinline__ Pack<T, Items> load_inside(const T* from, Place first, Place count) {
    Pack<T, Items> pack = {};
#pragma unroll
    for (int at = 0; at < Items; at += Each) {
        if (first + at >= 0 && first + at < count) {
            *reinterpret_cast<Pack<T, Each>*>(pack.at + at) = load_pack<Each>(from + first + at);
        }
    }
    return pack;
}

template <typename T, int Items>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, Items>& pack) {
    *reinterpret_cast<Pack<T, Items>*>(to) = pack;
}

// A pack stays in whole registers up to here. Without this the compiler takes it apart as soon as it is loaded and holds every
// narrow element in a register of its own.
template <typename T, int Items>
__device__ __forceinline__ void hold_packed(Pack<T, Items>& pack) {
    if constexpr (sizeof(T) < 4 && sizeof(pack) % 4 == 0) {
        unsigned* words = reinterpret_cast<unsigned*>(&pack);
#pragma unroll
        for (int word = 0; word < static_cast<int>(sizeof(pack) / 4); ++word) {
            asm volatile("" : "+r"(words[word]));
        }
    }
}

__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T to(float value);
template <>
__device__ __forceinline__ __half to<__half>(float value) { return __float2half_rn(value); }
template <>
__device__ __forceinline__ __nv_bfloat16 to<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }
#if !defined(WITHOUT_FP8)
__device__ __forceinline__ float to_float(__nv_fp8_e4m3 value) { return static_cast<float>(value); }
template <>
__device__ __forceinline__ __nv_fp8_e4m3 to<__nv_fp8_e4m3>(float value) { return __nv_fp8_e4m3(value); }
__device__ __forceinline__ float round_to_float8_e4m3fn(float value) { return to_float(to<__nv_fp8_e4m3>(value)); }
#endif

[[maybe_unused]] __device__ __forceinline__ void store_two(__half* at, float a, float b) {
    *reinterpret_cast<__half2*>(at) = __floats2half2_rn(a, b);
}
[[maybe_unused]] __device__ __forceinline__ void store_two(__nv_bfloat16* at, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(at) = __floats2bfloat162_rn(a, b);
}

#if !defined(WITHOUT_FP8)
[[maybe_unused]] __device__ __forceinline__ void store_two(__nv_fp8_e4m3* at, float a, float b) {
#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
    *reinterpret_cast<__nv_fp8x2_storage_t*>(at) = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
#else
    at[0] = to<__nv_fp8_e4m3>(a);
    at[1] = to<__nv_fp8_e4m3>(b);
#endif
}
#endif

// Computed values as elements of a pack: the device rounds two by one instruction.
template <typename T, int Items>
__device__ __forceinline__ void store_rounded(T* to_memory, const float (&values)[Items]) {
    static_assert(Items % 2 == 0, "elements are rounded in pairs");
    Pack<T, Items> pack;
#pragma unroll
    for (int one = 0; one < Items; one += 2) {
        store_two(&pack.at[one], values[one], values[one + 1]);
    }
    store_pack(to_memory, pack);
}

// The same in packs of `Each`, where all of them together are no number of whole 16 bytes.
template <int Each, typename T, int Items>
__device__ __forceinline__ void store_parts(T* to, const Pack<T, Items>& pack) {
#pragma unroll
    for (int first = 0; first < Items; first += Each) {
        Pack<T, Each> part;
#pragma unroll
        for (int one = 0; one < Each; ++one) {
            part.at[one] = pack.at[first + one];
        }
        store_pack(to + first, part);
    }
}

template <int Each, typename T, int Items>
__device__ __forceinline__ void store_rounded_parts(T* to_memory, const float (&values)[Items]) {
#pragma unroll
    for (int first = 0; first < Items; first += Each) {
        float part[Each];
#pragma unroll
        for (int one = 0; one < Each; ++one) {
            part[one] = values[first + one];
        }
        store_rounded(to_memory + first, part);
    }
}
