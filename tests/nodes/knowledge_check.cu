// Calls what the GPU pages show (in a namespace each) and compares with plain loops in double.
#include <cstdio>
#include <cstdlib>
#include <cmath>
#include <random>
#include <vector>

static int failures = 0;
static void close_to(const char* what, double got, double want, double tolerance) {
    if (std::fabs(got - want) <= tolerance * (1 + std::fabs(want))) return;
    if (++failures < 20) std::printf("%s: %.9g instead of %.9g\n", what, got, want);
}
static void done(const char* what) {
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) std::printf("%s: %s\n", what, cudaGetErrorString(error)), std::exit(1);
}

template <typename T>
struct Managed {
    T* at;
    explicit Managed(size_t count) { cudaMallocManaged(&at, count * sizeof(T)), cudaMemset(at, 0, count * sizeof(T)), done("memory"); }
    T& operator[](size_t i) { return at[i]; }
};

static std::mt19937 engine(1);
static float uniform() { return std::uniform_real_distribution<float>(-1, 1)(engine); }
static Managed<float> drawn(size_t count) {
    Managed<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = uniform();
    return values;
}
static Managed<__nv_bfloat16> drawn_bf16(size_t count) {
    Managed<__nv_bfloat16> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = __float2bfloat16(uniform());
    return values;
}

static void elementwise() {
    Managed<__half> in(8 * 1000), out(8 * 1000);
    for (int i = 0; i < 8000; ++i) in[i] = __float2half(uniform());
    cuda_elementwise::scaled<2><<<2, 256>>>((const uint4*)in.at, (uint4*)out.at, 1000, 3.0f), done("scaled");
    for (int i = 0; i < 8000; ++i) close_to("scaled", __half2float(out[i]), 3 * __half2float(in[i]), 1e-3);
}

static void rows() {
    auto in = drawn(5 * 1037);
    Managed<float2> moments(5);
    Managed<float> sums(5), scanned(5 * 1037), causal(5 * 1037);
    auto taps = drawn(5 * 4);
    cuda_row_reduction::moments<8><<<5, 256>>>(in.at, moments.at, 1037), done("moments");
    hopper_clusters::cluster_sums<<<5 * 4, 256>>>(in.at, sums.at, 1037), done("cluster_sums");
    cuda_scan::row_scan<4, 8><<<5, 256>>>(in.at, scanned.at, 1037), done("row_scan");
    cuda_convolution::causal<4, 4><<<dim3(3, 5), 128>>>(in.at, taps.at, causal.at, 1037), done("causal");
    for (int row = 0; row < 5; ++row) {
        double sum = 0, squares = 0;
        for (int i = 0; i < 1037; ++i) {
            double value = in[row * 1037 + i], convolved = 0;
            sum += value, squares += value * value;
            close_to("row_scan", scanned[row * 1037 + i], sum, 1e-4);
            for (int j = 0; j < 4; ++j) convolved += i - 3 + j < 0 ? 0.0 : double(taps[row * 4 + j]) * in[row * 1037 + i - 3 + j];
            close_to("causal", causal[row * 1037 + i], convolved, 1e-5);
        }
        close_to("moments", moments[row].x, sum, 1e-4), close_to("moments", moments[row].y, squares, 1e-4);
        close_to("cluster_sums", sums[row], sum, 1e-4);
    }
}

static void products() {
    auto A = drawn_bf16(128 * 96), B = drawn_bf16(96 * 192);
    Managed<float> C(128 * 192);
    cuda_matrix_product::product<<<dim3(3, 2), 128>>>(A.at, B.at, C.at, 192, 96), done("product");
    for (int i = 0; i < 128; ++i)
        for (int j = 0; j < 192; ++j) {
            double sum = 0;
            for (int p = 0; p < 96; ++p) sum += double(__bfloat162float(A[i * 96 + p])) * __bfloat162float(B[p * 192 + j]);
            close_to("product", C[i * 192 + j], sum, 1e-4);
        }
    Managed<float> tile(64 * 8);
    hopper_wgmma::tile_product<<<1, 128>>>(A.at, B.at, tile.at), done("tile_product");  // the first elements, as [64, 64] and [8, 64]
    for (int i = 0; i < 64; ++i)
        for (int j = 0; j < 8; ++j) {
            double sum = 0;
            for (int p = 0; p < 64; ++p) sum += double(__bfloat162float(A[i * 64 + p])) * __bfloat162float(B[j * 64 + p]);
            close_to("tile_product", tile[i * 8 + j], sum, 1e-4);
        }
    CUtensorMap map;
    Managed<__nv_bfloat16> box(64 * 8);
    if (!hopper_tma::encode(&map, A.at, 128, 96, 8)) std::puts("no TMA"), ++failures;
    hopper_tma::first_box<<<1, 64>>>(map, (uint4*)box.at), done("first_box");
    for (int row = 0; row < 8; ++row)
        for (int column = 0; column < 64; ++column) {
            int place = row * 64 + ((column / 8) ^ row) * 8 + column % 8;
            close_to("first_box", __bfloat162float(box[place]), __bfloat162float(A[row * 96 + column]), 0);
        }
}

static void attention() {
    const int keys = 77, queries = 3;
    auto q = drawn(queries * 128), K = drawn(keys * 128), V = drawn(keys * 128);
    Managed<float> out(queries * 128);
    cuda_attention::decode<<<queries, 32>>>((float4*)q.at, (float4*)K.at, (float4*)V.at, (float4*)out.at, keys, 0.1f * 1.44269504f), done("decode");
    for (int row = 0; row < queries; ++row) {
        std::vector<double> weights(keys);
        double all = 0;
        for (int key = 0; key < keys; ++key) {
            double dot = 0;
            for (int d = 0; d < 128; ++d) dot += double(q[row * 128 + d]) * K[key * 128 + d];
            all += weights[key] = std::exp(0.1 * dot);
        }
        for (int d = 0; d < 128; ++d) {
            double sum = 0;
            for (int key = 0; key < keys; ++key) sum += weights[key] / all * V[key * 128 + d];
            close_to("decode", out[row * 128 + d], sum, 1e-4);
        }
    }
}

static void indexed() {
    auto table = drawn(50 * 64), values = drawn(1037);
    Managed<int> ids(20 * 9), found(1037), count(1);
    Managed<float> out(20 * 64);
    for (int i = 0; i < 180; ++i) ids[i] = int(engine() % 51) - 1;
    cuda_gather_and_scatter::bags<16, 4><<<2, 256>>>((float4*)table.at, ids.at, (float4*)out.at, 20, 9), done("bags");
    for (int row = 0; row < 20; ++row)
        for (int i = 0; i < 64; ++i) {
            double sum = 0;
            for (int j = 0; j < 9; ++j) sum += ids[row * 9 + j] < 0 ? 0.0 : table[ids[row * 9 + j] * 64 + i];
            close_to("bags", out[row * 64 + i], sum, 1e-5);
        }
    cuda_sort_and_select::above<<<2, 128>>>(values.at, 0.3f, found.at, count.at, 1037), done("above");
    std::vector<int> times(1037);
    for (int i = 0; i < count[0]; ++i) ++times[found[i]];
    for (int i = 0; i < 1037; ++i) close_to("above", times[i], values[i] > 0.3f, 0);
}

static void streams() {
    auto in = drawn(10 * 1024);
    Managed<float> sum(1), out(1037);
    hopper_mbarrier::streamed<<<1, 256>>>(in.at, sum.at, 10), done("streamed");
    double want = 0;
    for (int i = 0; i < 10 * 1024; ++i) want += in[i];
    close_to("streamed", sum[0], want, 1e-3);
    hopper_pdl::launch(in.at, out.at, 1037, 1, nullptr), done("launch");
    for (int i = 0; i < 1037; ++i) close_to("launch", out[i], 2 * in[i], 0);
}

int main() {
    for (auto part : {elementwise, rows, products, attention, indexed, streams}) part();
    if (!failures) std::puts("all right");
    return failures != 0;
}
