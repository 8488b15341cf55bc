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
    cuda_gather::bags<16, 4><<<2, 256>>>((float4*)table.at, ids.at, (float4*)out.at, 20, 9), done("bags");
    for (int row = 0; row < 20; ++row)
        for (int i = 0; i < 64; ++i) {
            double sum = 0;
            for (int j = 0; j < 9; ++j) sum += ids[row * 9 + j] < 0 ? 0.0 : table[ids[row * 9 + j] * 64 + i];
            close_to("bags", out[row * 64 + i], sum, 1e-5);
        }
    cuda_sort::above<<<2, 128>>>(values.at, 0.3f, found.at, count.at, 1037), done("above");
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

static void columns() {
    auto in = drawn(203 * 260);
    Managed<float> out(260);
    cuda_column_reduction::column_sums<<<dim3(3, 4), dim3(32, 8)>>>((float4*)in.at, out.at, 203, 65), done("column_sums");
    for (int c = 0; c < 260; ++c) {
        double sum = 0;
        for (int row = 0; row < 203; ++row) sum += in[row * 260 + c];
        close_to("column_sums", out[c], sum, 1e-4);
    }
}

static void chosen() {
    Managed<float> in(37 * 101);
    Managed<int> places(37 * 3), ids(10003);
    Managed<unsigned> counted(40);
    for (int i = 0; i < 37 * 101; ++i) in[i] = float(int(engine() % 19)) - 9;  // with ties
    cuda_select::top<4><<<10, 128>>>(in.at, places.at, 37, 101, 3), done("top");
    for (int row = 0; row < 37; ++row) {
        std::vector<float> left(in.at + row * 101, in.at + (row + 1) * 101);
        for (int taken = 0; taken < 3; ++taken) {
            int best = 0;
            for (int c = 1; c < 101; ++c)
                if (left[c] > left[best]) best = c;
            close_to("top", places[row * 3 + taken], best, 0), left[best] = -1e9f;
        }
    }
    std::vector<unsigned> wanted(40);
    for (int i = 0; i < 10003; ++i) {
        ids[i] = int(engine() % 44) - 2;
        if (ids[i] >= 0 && ids[i] < 40) ++wanted[ids[i]];
    }
    cuda_histogram::counts<<<3, 256, 160>>>(ids.at, counted.at, 10003, 40), done("counts");
    for (int b = 0; b < 40; ++b) close_to("counts", counted[b], wanted[b], 0);
    auto values = drawn(203 * 64);
    Managed<float> out(42 * 64);
    std::vector<double> sums(42 * 64);
    cuda_scatter::add_rows<16><<<4, 256>>>((float4*)values.at, ids.at, (float4*)out.at, 203), done("add_rows");
    for (int i = 0; i < 203 * 64; ++i)
        if (ids[i / 64] >= 0) sums[ids[i / 64] * 64 + i % 64] += values[i];
    for (int i = 0; i < 42 * 64; ++i) close_to("add_rows", out[i], sums[i], 1e-4);
}

static void parts() {
    auto q = drawn(2 * 128), K = drawn(77 * 128), V = drawn(77 * 128);
    Managed<float> values(2 * 5 * 128), out(2 * 128);
    Managed<float2> marks(2 * 5);
    cuda_decode_attention::part<<<dim3(5, 2), 32>>>((float4*)q.at, (float4*)K.at, (float4*)V.at, (float4*)values.at, marks.at, 77, 0.1f * 1.44269504f), done("part");
    cuda_decode_attention::merge<<<2, 128>>>(values.at, marks.at, out.at, 5), done("merge");
    for (int row = 0; row < 2; ++row) {
        std::vector<double> weights(77);
        double all = 0;
        for (int key = 0; key < 77; ++key) {
            double dot = 0;
            for (int d = 0; d < 128; ++d) dot += double(q[row * 128 + d]) * K[key * 128 + d];
            all += weights[key] = std::exp(0.1 * dot);
        }
        for (int d = 0; d < 128; ++d) {
            double sum = 0;
            for (int key = 0; key < 77; ++key) sum += weights[key] / all * V[key * 128 + d];
            close_to("merge", out[row * 128 + d], sum, 1e-4);
        }
    }
}

static void updates() {
    auto x = drawn(1040), scale = drawn(71), state = drawn(71 * 16), A = drawn(71 * 16), B = drawn(16), C = drawn(16), dt = drawn(71);
    Managed<int8_t> weight(71 * 1040);
    Managed<float> out(71);
    for (int i = 0; i < 71 * 1040; ++i) weight[i] = int8_t(int(engine() % 255) - 127);
    cuda_quantised_product::product<<<18, 128>>>((float4*)x.at, (int4*)weight.at, scale.at, out.at, 71, 65), done("product");
    for (int o = 0; o < 71; ++o) {
        double sum = 0;
        for (int d = 0; d < 1040; ++d) sum += double(weight[o * 1040 + d]) * x[d];
        close_to("product", out[o], sum * scale[o], 1e-3);
    }
    std::vector<float> before(state.at, state.at + 71 * 16);
    for (int row = 0; row < 71; ++row) dt[row] = 0.5f + std::fabs(dt[row]);
    for (int i = 0; i < 71 * 16; ++i) A[i] = -4 * std::fabs(A[i]);
    cuda_state_update::update<<<3, 128>>>((float4*)state.at, x.at, dt.at, (float4*)A.at, (float4*)B.at, (float4*)C.at, out.at, 71), done("update");
    for (int row = 0; row < 71; ++row) {
        double sum = 0;
        for (int i = row * 16; i < (row + 1) * 16; ++i) {
            double next = std::exp(double(dt[row]) * A[i]) * before[i] + double(dt[row]) * x[row] * B[i % 16];
            close_to("state", state[i], next, 1e-4), sum += next * C[i % 16];
        }
        close_to("update", out[row], sum, 1e-3);
    }
}

int main() {
    for (auto part : {elementwise, rows, products, attention, indexed, streams, columns, chosen, parts, updates}) part();
    if (!failures) std::puts("all right");
    return failures != 0;
}
