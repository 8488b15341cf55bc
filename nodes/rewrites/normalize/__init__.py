"""Other people's forms become the one that the rest reads; nothing gets faster by these alone."""
