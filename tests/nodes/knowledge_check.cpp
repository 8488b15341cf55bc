// Calls what the CPU pages show (in a namespace each) and compares with plain loops in double.
#include <cstdio>
#include <random>
#include <vector>

static int failures = 0;
static void close_to(const char* what, double got, double want, double tolerance) {
    if (std::fabs(got - want) <= tolerance * (1 + std::fabs(want))) return;
    if (++failures < 20) std::printf("%s: %.9g instead of %.9g\n", what, got, want);
}

template <typename Drawn>
static void more(Drawn& drawn, std::mt19937& engine) {
    auto in = drawn(203 * 1057);
    std::vector<float> out(1057);
    cpu_column_reduction::column_sums(in.data(), out.data(), 203, 1057);
    for (int c = 0; c < 1057; ++c) {
        double sum = 0;
        for (int row = 0; row < 203; ++row) sum += in[row * 1057 + c];
        close_to("column_sums", out[c], sum, 1e-5);
    }
    std::vector<float> values(37 * 2);
    std::vector<int> places(37 * 2);
    for (int i = 0; i < 37 * 19; ++i) in[i] = float(int(engine() % 7));  // with ties
    cpu_select::top2(in.data(), values.data(), places.data(), 37, 19);
    for (int row = 0; row < 37; ++row) {
        int first = 0, second = -1;
        for (int c = 1; c < 19; ++c)
            if (in[row * 19 + c] > in[row * 19 + first]) first = c;
        for (int c = 0; c < 19; ++c)
            if (c != first && (second < 0 || in[row * 19 + c] > in[row * 19 + second])) second = c;
        close_to("top2", places[row * 2], first, 0), close_to("top2", places[row * 2 + 1], second, 0);
        close_to("top2", values[row * 2 + 1], in[row * 19 + second], 0);
    }
    std::vector<int> ids(70001);
    for (auto& id : ids) id = int(engine() % 40) - 2;
    std::vector<int64_t> counted(37), wanted(37);
    cpu_histogram::counts(ids.data(), counted.data(), 70001, 37);
    for (int id : ids)
        if (id >= 0 && id < 37) ++wanted[id];
    for (int b = 0; b < 37; ++b) close_to("counts", double(counted[b]), double(wanted[b]), 0);
    auto rows = drawn(1100 * 67);
    std::vector<float> added(38 * 67, 1.0f);
    std::vector<double> sums(38 * 67, 1.0);
    cpu_scatter::add_rows(rows.data(), ids.data(), added.data(), 1100, 67);
    for (int i = 0; i < 1100 * 67; ++i)
        if (ids[i / 67] >= 0) sums[ids[i / 67] * 67 + i % 67] += rows[i];
    for (int i = 0; i < 38 * 67; ++i) close_to("add_rows", added[i], sums[i], 1e-4);
    auto x = drawn(1037), scale = drawn(71);
    std::vector<int8_t> weight(71 * 1037);
    for (auto& one : weight) one = int8_t(engine() % 255 - 127);
    cpu_quantised_product::product(x.data(), weight.data(), scale.data(), out.data(), 71, 1037);
    for (int o = 0; o < 71; ++o) {
        double sum = 0;
        for (int d = 0; d < 1037; ++d) sum += double(weight[o * 1037 + d]) * x[d];
        close_to("product", out[o], sum * scale[o], 1e-4);
    }
    auto q = drawn(40), K = drawn(150 * 40), V = drawn(150 * 40);
    std::vector<cpu_decode_attention::Part> parts(4);  // the last one has no key
    for (int p = 0; p < 3; ++p) cpu_decode_attention::attend(q.data(), K.data() + p * 50 * 40, V.data() + p * 50 * 40, 50, 40, 0.5f, parts[p]);
    cpu_decode_attention::merge(parts.data(), 4, out.data(), 40);
    std::vector<double> weights(150);
    double all = 0;
    for (int key = 0; key < 150; ++key) {
        double dot = 0;
        for (int d = 0; d < 40; ++d) dot += double(q[d]) * K[key * 40 + d];
        all += weights[key] = std::exp(dot * 0.5);
    }
    for (int d = 0; d < 40; ++d) {
        double sum = 0;
        for (int key = 0; key < 150; ++key) sum += weights[key] / all * V[key * 40 + d];
        close_to("merge", out[d], sum, 1e-5);
    }
    auto state = drawn(71 * 48), A = drawn(71 * 48), B = drawn(48), C = drawn(48), dt = drawn(71);
    auto before = state;
    for (int row = 0; row < 71; ++row) dt[row] = 0.5f + 3 * std::fabs(dt[row]);
    for (auto& a : A) a = -4 * std::fabs(a);
    cpu_state_update::update(state.data(), x.data(), dt.data(), A.data(), B.data(), C.data(), out.data(), 71, 48);
    for (int row = 0; row < 71; ++row) {
        double sum = 0;
        for (int i = row * 48; i < (row + 1) * 48; ++i) {
            double next = std::exp(double(dt[row]) * A[i]) * before[i] + double(dt[row]) * x[row] * B[i % 48];
            close_to("state", state[i], next, 1e-5), sum += next * C[i % 48];
        }
        close_to("update", out[row], sum, 1e-4);
    }
}

int main() {
    std::mt19937 engine(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    auto drawn = [&](size_t count) {
        std::vector<float> values(count);
        for (auto& value : values) value = uniform(engine);
        return values;
    };
    for (float x = -87; x < 88; x += 0.0371f) close_to("exponential", cpu_elementwise::exponential(x) / std::exp(double(x)), 1, 1.2e-7);
    auto in = drawn(7 * 193), weight = drawn(193);
    std::vector<float> out(7 * 193);
    cpu_elementwise::silu(in.data(), out.data(), 7 * 193);
    for (int i = 0; i < 7 * 193; ++i) close_to("silu", out[i], in[i] / (1 + std::exp(-double(in[i]))), 1e-6);
    cpu_row_reduction::rms_norm(in.data(), weight.data(), out.data(), 7, 193, 1e-5f);
    for (int row = 0; row < 7; ++row) {
        double sum = 0;
        for (int i = 0; i < 193; ++i) sum += double(in[row * 193 + i]) * in[row * 193 + i];
        for (int i = 0; i < 193; ++i)
            close_to("rms_norm", out[row * 193 + i], in[row * 193 + i] / std::sqrt(sum / 193 + 1e-5) * weight[i], 1e-5);
    }
    auto a = drawn(6 * 50), b = drawn(50 * 40);  // A is packed: column by column
    std::vector<float> packed(2 * 50 * 32), c(6 * 32, 1.0f);
    cpu_matrix_product::pack(b.data(), packed.data(), 50, 40);
    cpu_matrix_product::strip_product(a.data(), packed.data() + 50 * 32, c.data(), 32, 50);
    for (int i = 0; i < 6; ++i)
        for (int j = 0; j < 32; ++j) {
            double sum = 1;
            for (int p = 0; p < 50; ++p) sum += j < 8 ? double(a[p * 6 + i]) * b[p * 40 + 32 + j] : 0.0;
            close_to("micro", c[i * 32 + j], sum, 1e-5);
        }
    auto q = drawn(40), K = drawn(150 * 40), V = drawn(150 * 40);
    cpu_attention::attend(q.data(), K.data(), V.data(), out.data(), 150, 40, 0.5f);
    std::vector<double> weights(150);
    double all = 0;
    for (int key = 0; key < 150; ++key) {
        double dot = 0;
        for (int d = 0; d < 40; ++d) dot += double(q[d]) * K[key * 40 + d];
        all += weights[key] = std::exp(dot * 0.5);
    }
    for (int d = 0; d < 40; ++d) {
        double sum = 0;
        for (int key = 0; key < 150; ++key) sum += weights[key] / all * V[key * 40 + d];
        close_to("attend", out[d], sum, 1e-5);
    }
    std::vector<int> ids(20 * 9), found(400);
    for (auto& id : ids) id = int(engine() % 51) - 1;
    auto table = drawn(50 * 64);
    std::vector<float> bags(20 * 64);
    cpu_gather::bags<64>(table.data(), ids.data(), bags.data(), 20, 9);
    for (int row = 0; row < 20; ++row)
        for (int i = 0; i < 64; ++i) {
            double sum = 0;
            for (int j = 0; j < 9; ++j) sum += ids[row * 9 + j] < 0 ? 0.0 : table[ids[row * 9 + j] * 64 + i];
            close_to("bags", bags[row * 64 + i], sum, 1e-5);
        }
    cpu_scan::running_sums(in.data(), out.data(), 7, 193);
    for (int row = 0; row < 7; ++row) {
        double sum = 0;
        for (int i = 0; i < 193; ++i) close_to("running_sums", out[row * 193 + i], sum += in[row * 193 + i], 1e-5);
    }
    int64_t count = cpu_sort::above(in.data(), 193, 0.3f, found.data()), at = 0;
    for (int i = 0; i < 193; ++i)
        if (in[i] > 0.3f) close_to("above", at < count ? found[at] : -1, i, 0), ++at;
    close_to("above", double(count), double(at), 0);
    cpu_convolution::causal<4>(in.data(), weight.data(), out.data(), 7, 193);
    for (int channel = 0; channel < 7; ++channel)
        for (int t = 0; t < 193; ++t) {
            double sum = 0;
            for (int j = 0; j < 4; ++j) sum += t - 3 + j < 0 ? 0.0 : double(weight[channel * 4 + j]) * in[channel * 193 + t - 3 + j];
            close_to("causal", out[channel * 193 + t], sum, 1e-5);
        }
    more(drawn, engine);
    if (!failures) std::puts("all right");
    return failures != 0;
}
