"""Program x schedule -> CUDA text: one file a sketch, host.py for the entry point, text.py for what they share."""
