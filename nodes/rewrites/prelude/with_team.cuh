#pragma once
#include <cstdint>
#include <type_traits>

// Calls `run` with the fewest lanes that a row of `steps` fits into, TEAM_ITEMS steps of `BYTES` each or, of a whole warp, up
// to four times as many; says whether there were any.
template <int BYTES, typename Run>
bool with_team(int64_t steps, Run run) {
  const auto fits = [&](auto team, auto items) {
    constexpr int kept = decltype(items)::value;
    if constexpr (kept * BYTES <= 256 || kept == 1) {
      if (steps <= decltype(team)::value * kept) return run(team, items), true;
    }
    return false;
  };
  constexpr std::integral_constant<int, TEAM_ITEMS> few;
  return fits(std::integral_constant<int, 4>{}, few) || fits(std::integral_constant<int, 8>{}, few) ||
         fits(std::integral_constant<int, 16>{}, few) || fits(std::integral_constant<int, 32>{}, few) ||
         fits(std::integral_constant<int, 32>{}, std::integral_constant<int, 2 * TEAM_ITEMS>{}) ||
         fits(std::integral_constant<int, 32>{}, std::integral_constant<int, 4 * TEAM_ITEMS>{});
}
