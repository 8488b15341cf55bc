// One block a token; its threads take the pairs of all heads.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void rotary_kernel(const int64_t* __restrict__ position, T* __restrict__ query, const float* __restrict__ cache,
                              int heads, int head_dim) {
  const int64_t token = blockIdx.x;
  const int half = head_dim / 2;
  const float* cos = cache + position[token] * head_dim;
  const float* sin = cos + half;
  for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
    const int head = i / half;
    const int d = i % half;
    T* row = query + (token * heads + head) * head_dim;
    const float a = static_cast<float>(row[d]);
    const float b = static_cast<float>(row[d + half]);
    row[d] = static_cast<T>(a * cos[d] - b * sin[d]);
    row[d + half] = static_cast<T>(b * cos[d] + a * sin[d]);
  }
}

template <typename T>
void rotate(const int64_t* position, T* query, const float* cache, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
  dim3 grid(tokens);
  dim3 block(heads * head_dim / 2 < 512 ? heads * head_dim / 2 : 512);
  rotary_kernel<T><<<grid, block, 0, stream>>>(position, query, cache, heads, head_dim);
}

extern "C" void rotary_embedding_float16(const int64_t* position, __half* query, const float* cache, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
  rotate(position, query, cache, tokens, heads, head_dim, stream);
}
extern "C" void rotary_embedding_bfloat16(const int64_t* position, __nv_bfloat16* query, const float* cache, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
  rotate(position, query, cache, tokens, heads, head_dim, stream);
}
