#include "cpu_ops.cpp"
extern "C" void bnb_quantize(float* code, float* A, float* absmax, unsigned char* out, int64_t n) { quantize_cpu(code, A, absmax, out, 256, n); }
