// cache_row_in_registers
// timed 4096 4096 even aligned
// What a loop stores in v is the variable that it loaded from x: v had a register in which nothing was put.

__global__ void first_kernel(const float* x, float* y, float* v, int rows, int n) {
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
    float4 pack = reinterpret_cast<const float4*>(&x[row * n + 0])[i];
    pack.x = (float)pack.x;
    pack.y = (float)pack.y;
    pack.z = (float)pack.z;
    pack.w = (float)pack.w;
    reinterpret_cast<float4*>(&v[row * n + 0])[i] = pack;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
    float4 pack = reinterpret_cast<float4*>(&v[row * n + 0])[i];
    pack.x = (float)pack.x;
    pack.y = (float)pack.y;
    pack.z = (float)pack.z;
    pack.w = (float)pack.w;
    reinterpret_cast<float4*>(&y[row * n + 0])[i] = pack;
  }
}

extern "C" void fuzz_float32(const float* x, float* y, float* v, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows, 128, 0, stream>>>(x, y, v, rows, n);
}
