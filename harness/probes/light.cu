// Speed of light: a kernel that reads `read` packs of 16 bytes, writes the first `inplace` of them back to where they
// came from and `write` others elsewhere, and does nothing else.
// Packs are independent and coalesced; `PACKS` of them are in flight in each thread of a block of `BLOCK`. Which of the
// variants is fastest depends on the size (small tensors want many small blocks), so all are timed and the fastest is the
// bound. A chained one is launched while the kernel before it drains and waits for that behind its address arithmetic.
#include <cstdint>
#include <cuda_runtime.h>

namespace {

template <int PACKS, int BLOCK, bool CHAINED>
__global__ void __launch_bounds__(BLOCK) stream(uint4* __restrict__ in, uint4* __restrict__ out, int64_t read,
                                                int64_t write, int64_t inplace) {
  const int64_t most = read > write ? read : write;
  const int64_t first = (int64_t)blockIdx.x * (BLOCK * PACKS) + threadIdx.x;
  uint4 value[PACKS];
#if __CUDA_ARCH__ >= 900
  if (CHAINED) {
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
  }
#endif
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const int64_t at = first + i * BLOCK;
    value[i] = at < read ? in[at] : make_uint4(1, 2, 3, 4);
  }
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const int64_t at = first + i * BLOCK;
    // A pack that is only read must still be needed: it is stored when it holds what random data never does.
    const bool needed = (value[i].x & value[i].y & value[i].z & value[i].w) == 0xffffffffu;
    if (at < inplace) in[at] = value[i];
    if (at < write) out[at] = value[i];
    if (needed && at < most) out[0] = value[i];
  }
}

template <int PACKS, int BLOCK, bool CHAINED>
void launch(void* in, void* out, int64_t read, int64_t write, int64_t inplace, cudaStream_t stream_) {
  const int64_t most = read > write ? read : write;
  const int64_t blocks = (most + BLOCK * PACKS - 1) / (BLOCK * PACKS);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)blocks);  // 2^31 blocks of the smallest kind are 2 TB
  config.blockDim = dim3(BLOCK);
  config.stream = stream_;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = CHAINED ? 1 : 0;
  cudaLaunchKernelEx(&config, stream<PACKS, BLOCK, CHAINED>, (uint4*)in, (uint4*)out, read, write, inplace);
}

}  // namespace

#define VARIANT(name, packs, block, chained)                                                                 \
  extern "C" void name(void* in, void* out, int64_t read, int64_t write, int64_t inplace, cudaStream_t s) {  \
    launch<packs, block, chained>(in, out, read, write, inplace, s);                                         \
  }

VARIANT(light_1, 1, 256, false)
VARIANT(light_4, 4, 256, false)
VARIANT(light_8, 8, 256, false)
VARIANT(light_chained_small, 1, 64, true)
VARIANT(light_chained_1, 1, 256, true)
VARIANT(light_chained_2, 2, 128, true)
VARIANT(light_chained_4, 4, 256, true)
