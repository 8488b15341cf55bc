// One block a token; the pairs of all its heads by the block's threads. What a pair is, and the rotation of one, stand in
// device functions, and which of two layouts a head has is known when the kernel is compiled.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include <algorithm>

#define LDG(arg) __ldg(arg)

__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename scalar_t, bool IS_NEOX>
inline __device__ void rotate_pair(scalar_t* __restrict__ head, const scalar_t* __restrict__ cos_ptr,
                                   const scalar_t* __restrict__ sin_ptr, int rot_offset, int embed_dim) {
  int x_index, y_index;
  float cos, sin;
  if (IS_NEOX) {
    // the halves of a head against each other
    x_index = rot_offset;
    y_index = embed_dim + rot_offset;
    cos = widen(LDG(cos_ptr + x_index));
    sin = widen(LDG(sin_ptr + x_index));
  } else {
    // neighbours
    x_index = 2 * rot_offset;
    y_index = 2 * rot_offset + 1;
    cos = widen(LDG(cos_ptr + x_index / 2));
    sin = widen(LDG(sin_ptr + x_index / 2));
  }

  const float x = widen(head[x_index]);
  const float y = widen(head[y_index]);
  head[x_index] = static_cast<scalar_t>(x * cos - y * sin);
  head[y_index] = static_cast<scalar_t>(y * cos + x * sin);
}

template <typename scalar_t, bool IS_NEOX>
inline __device__ void rotate_heads(scalar_t* __restrict__ query, scalar_t* __restrict__ key, const scalar_t* cache_ptr,
                                    const int head_size, const int num_heads, const int num_kv_heads, const int rot_dim,
                                    const int token, const int64_t query_stride, const int64_t key_stride) {
  const int embed_dim = rot_dim / 2;
  const scalar_t* cos_ptr = cache_ptr;
  const scalar_t* sin_ptr = cache_ptr + embed_dim;

  const int nq = num_heads * embed_dim;
  for (int i = threadIdx.x; i < nq; i += blockDim.x) {
    const int head = i / embed_dim;
    const int64_t token_head = token * query_stride + head * head_size;
    const int rot_offset = i % embed_dim;
    rotate_pair<scalar_t, IS_NEOX>(query + token_head, cos_ptr, sin_ptr, rot_offset, embed_dim);
  }

  const int nk = num_kv_heads * embed_dim;
  for (int i = threadIdx.x; i < nk; i += blockDim.x) {
    const int head = i / embed_dim;
    const int64_t token_head = token * key_stride + head * head_size;
    const int rot_offset = i % embed_dim;
    rotate_pair<scalar_t, IS_NEOX>(key + token_head, cos_ptr, sin_ptr, rot_offset, embed_dim);
  }
}

template <typename scalar_t, bool IS_NEOX>
__global__ void rotary_query_key_kernel(const int64_t* __restrict__ positions, scalar_t* __restrict__ query,
                                        scalar_t* __restrict__ key, const scalar_t* __restrict__ cos_sin_cache,
                                        const int rot_dim, const int64_t query_stride, const int64_t key_stride,
                                        const int num_heads, const int num_kv_heads, const int head_size) {
  const int token = blockIdx.x;
  const int64_t position = positions[token];
  const scalar_t* cache_ptr = cos_sin_cache + position * rot_dim;

  rotate_heads<scalar_t, IS_NEOX>(query, key, cache_ptr, head_size, num_heads, num_kv_heads, rot_dim, token, query_stride,
                                  key_stride);
}

template <typename scalar_t>
void rotate(const int64_t* positions, scalar_t* query, scalar_t* key, const scalar_t* cache, int64_t tokens, int64_t heads,
            int64_t kv_heads, int64_t head_dim, int64_t is_neox, cudaStream_t stream) {
  const int rot_dim = head_dim;
  const int64_t query_stride = heads * head_dim;
  const int64_t key_stride = kv_heads * head_dim;
  dim3 grid(tokens);
  dim3 block(std::min<int64_t>(heads * rot_dim / 2, 512));
  if (is_neox) {
    rotary_query_key_kernel<scalar_t, true><<<grid, block, 0, stream>>>(
        positions, query, key, cache, rot_dim, query_stride, key_stride, heads, kv_heads, head_dim);
  } else {
    rotary_query_key_kernel<scalar_t, false><<<grid, block, 0, stream>>>(
        positions, query, key, cache, rot_dim, query_stride, key_stride, heads, kv_heads, head_dim);
  }
}

extern "C" void rotary_query_key_float16(const int64_t* positions, __half* query, __half* key, const __half* cache,
                                         int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                         int64_t is_neox, cudaStream_t stream) {
  rotate(positions, query, key, cache, tokens, heads, kv_heads, head_dim, is_neox, stream);
}
extern "C" void rotary_query_key_bfloat16(const int64_t* positions, __nv_bfloat16* query, __nv_bfloat16* key,
                                          const __nv_bfloat16* cache, int64_t tokens, int64_t heads, int64_t kv_heads,
                                          int64_t head_dim, int64_t is_neox, cudaStream_t stream) {
  rotate(positions, query, key, cache, tokens, heads, kv_heads, head_dim, is_neox, stream);
}
