#pragma once
#include <cstdint>

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
