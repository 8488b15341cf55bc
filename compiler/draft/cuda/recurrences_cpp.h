
template <Cell CELL, int HIDDEN, int ROWS, int CELLS, bool LAYERS>
void steps_of_cells(const Recurrence& r) {
    constexpr int kGates = gates_of<CELL>, kSums = sums_of<CELL>, kPadded = (HIDDEN + 3) / 4 * 4;
    for (int cell = 0; cell < CELLS; ++cell) {
        const bool top = !LAYERS || cell == CELLS - 1, first = !LAYERS || cell == 0, backwards = !LAYERS && cell == 1;
        float* out = top ? r.out + (LAYERS ? 0 : cell * HIDDEN) : r.below + cell * r.steps * r.batch * HIDDEN;
        const int64_t out_step = top ? r.out_step : r.batch * HIDDEN, out_row = top ? r.out_row : HIDDEN;
        for (int64_t done = 0; done < r.steps; ++done) {
            const int64_t step = backwards ? r.steps - 1 - done : done, earlier = backwards ? step + 1 : step - 1;
#pragma omp parallel for
            for (int unit = 0; unit < HIDDEN; ++unit) {
                const float* weights = r.weights + (cell * HIDDEN + unit) * kGates * kPadded;
                const float* from_below = first ? nullptr : r.from_below + ((cell - 1) * HIDDEN + unit) * kGates * kPadded;
                for (int64_t row = 0; row < r.batch; ++row) {
                    const int64_t place = (cell * r.batch + row) * HIDDEN;
                    const float* before = done ? out + earlier * out_step + row * out_row : r.hidden + place;
                    const float* given = r.given + step * r.given_step + row * r.given_row + (LAYERS ? 0 : cell * kGates * HIDDEN);
                    const float* below = first ? nullptr : r.below + (((cell - 1) * r.steps + step) * r.batch + row) * HIDDEN;
                    double sums[kSums];
                    for (int sum = 0; sum < kSums; ++sum) sums[sum] = r.bias[(cell * HIDDEN + unit) * kSums + sum];
                    for (int gate = 0; gate < kGates; ++gate) {
                        double of_input = first ? given[gate * HIDDEN + unit] : 0.0, of_before = 0.0;
                        for (int k = 0; k < HIDDEN; ++k) {
                            of_before += static_cast<double>(weights[gate * kPadded + k]) * before[k];
                            if (!first) of_input += static_cast<double>(from_below[gate * kPadded + k]) * below[k];
                        }
                        sums[gate] += of_input;
                        sums[CELL == Cell::gru && gate == 2 ? 3 : gate] += of_before;
                    }
                    float rounded[kSums];
                    for (int sum = 0; sum < kSums; ++sum) rounded[sum] = static_cast<float>(sums[sum]);
                    float state = CELL != Cell::lstm ? 0.0f : done ? r.last_state[place + unit] : r.state[place + unit];
                    const float hidden = next_hidden<CELL>(rounded, before[unit], state);
                    out[step * out_step + row * out_row + unit] = hidden;
                    r.last[place + unit] = hidden;
                    if (CELL == Cell::lstm) r.last_state[place + unit] = state;
                }
            }
        }
    }
}
