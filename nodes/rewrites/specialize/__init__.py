"""Several forms in one file, chosen by the host; numbers that a search goes on with."""
