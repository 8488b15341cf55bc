enum class Cell { rnn_tanh, rnn_relu, gru, lstm };

// What all steps of some cells take and make. Cell c is a layer, or a direction of one layer.
struct Recurrence {
    const float *given;  // [rows and steps, directions, gates, units]: the inputs' part of the sums, of the first layer
    const float *weights, *from_below;  // [cells, units, gates, units]: of the step before, and of the layer below
    const float *bias;  // [cells, units, sums]
    const float *hidden, *state;  // [cells, rows, units]: before the first step
    float *out, *below, *last, *last_state;  // out of the last layer; [layers, steps, rows, units] of those below it; [cells, rows, units]
    int64_t steps, batch, given_row, given_step, out_row, out_step;  // strides in floats
};

// What a unit is made of its sums and of what it was: the sums of an LSTM are those of its gates i, f, g, o, those of a GRU r, z, and n's from
// the input and from the step before.
template <Cell CELL>
DEVICE float next_hidden(const float* sums, float before, float& state) {
    if (CELL == Cell::rnn_tanh) return tanhf(sums[0]);
    if (CELL == Cell::rnn_relu) return sums[0] < 0.0f ? 0.0f : sums[0];
    const float first = 1.0f / (1.0f + expf(-sums[0])), second = 1.0f / (1.0f + expf(-sums[1]));
    if (CELL == Cell::gru) {
        const float made = tanhf(sums[2] + first * sums[3]);
        return (before - made) * second + made;
    }
    state = second * state + first * tanhf(sums[2]);
    return tanhf(state) / (1.0f + expf(-sums[3]));
}

template <Cell CELL>
constexpr int gates_of = CELL == Cell::lstm ? 4 : CELL == Cell::gru ? 3 : 1;
template <Cell CELL>
constexpr int sums_of = CELL == Cell::gru ? 4 : gates_of<CELL>;
