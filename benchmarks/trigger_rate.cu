// What it costs a block to let the next grid be set up early (programmatic dependent launch): microseconds a launch of
// grids of many sizes, whose threads add to one element each, in a CUDA graph of 40 launches.
//
//     nvcc -O3 -std=c++17 -arch=sm_90 benchmarks/trigger_rate.cu -o /tmp/trigger_rate && /tmp/trigger_rate
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

enum When { NEVER, AFTER_WAIT, AT_END };

template <bool WAIT, When TRIGGER>
__global__ void add(float* y, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (WAIT) cudaGridDependencySynchronize();
  if (TRIGGER == AFTER_WAIT) cudaTriggerProgrammaticLaunchCompletion();
  if (i < n) y[i] = y[i] * 2.0f + 1.0f;
  if (TRIGGER == AT_END) cudaTriggerProgrammaticLaunchCompletion();
}

template <bool WAIT, When TRIGGER>
double us_a_launch(float* y, unsigned blocks, unsigned threads, bool dependent, cudaStream_t stream) {
  constexpr int LAUNCHES = 40, SAMPLES = 12;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = dependent ? 1 : 0;

  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < LAUNCHES; ++i) cudaLaunchKernelEx(&config, add<WAIT, TRIGGER>, y, blocks * threads);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&replay, graph, 0);
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  std::vector<float> ms(SAMPLES);
  for (float& sample : ms) {
    cudaEventRecord(start, stream);
    cudaGraphLaunch(replay, stream);
    cudaEventRecord(stop, stream);
    cudaEventSynchronize(stop);
    cudaEventElapsedTime(&sample, start, stop);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  std::sort(ms.begin(), ms.end());
  return ms[SAMPLES / 2] * 1e3 / LAUNCHES;
}

int main() {
  constexpr unsigned MOST_ELEMENTS = 1u << 23;
  float* y;
  cudaMalloc(&y, MOST_ELEMENTS * sizeof(float));
  cudaMemset(y, 0, MOST_ELEMENTS * sizeof(float));
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  std::printf("threads   blocks |   plain  and triggers | dependent   waits  and triggers  and at its end\n");
  for (unsigned threads : {32, 64, 128, 256, 512, 1024}) {
    for (unsigned blocks = 132; blocks <= 33792 && blocks * threads <= MOST_ELEMENTS; blocks *= 2) {
      std::printf("%7u %8u | %7.2f %13.2f | %9.2f %7.2f %13.2f %15.2f\n", threads, blocks,
                  us_a_launch<false, NEVER>(y, blocks, threads, false, stream),
                  us_a_launch<true, AFTER_WAIT>(y, blocks, threads, false, stream),
                  us_a_launch<false, NEVER>(y, blocks, threads, true, stream),
                  us_a_launch<true, NEVER>(y, blocks, threads, true, stream),
                  us_a_launch<true, AFTER_WAIT>(y, blocks, threads, true, stream),
                  us_a_launch<true, AT_END>(y, blocks, threads, true, stream));
    }
  }
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) std::printf("%s\n", cudaGetErrorString(error));
  return error != cudaSuccess;
}
