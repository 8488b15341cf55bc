"""WHO ACTS: one node a file, `name(state, runtime) -> update`. Agents ask a policy, gates ask the harness."""
