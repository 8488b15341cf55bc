"""Views over records: they measure nothing."""
