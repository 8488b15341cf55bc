#include <cstdint>
#include <cstdlib>

extern "C" void cpu_column_sums(const float* dout, float* dbias, float* colmax, int64_t rows, int64_t cols) {
    // bias gradient: for every output channel, sum over the batch
    for (int o = 0; o < cols; o++) {
        double sum = 0.0;
        for (int bt = 0; bt < rows; bt++) {
            sum += dout[bt * cols + o];
        }
        dbias[o] = sum;
    }
    for (int o = 0; o < cols; o++) {
        colmax[o] = dout[o];
    }
    for (int bt = 1; bt < rows; bt++) {
        for (int o = 0; o < cols; o++) {
            if (dout[bt * cols + o] > colmax[o]) {
                colmax[o] = dout[bt * cols + o];
            }
        }
    }
}
