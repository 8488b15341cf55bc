"""ORDER: the graph, its routes, and the sessions that run it."""
