"""Which number of draft tokens is fastest, by scenario and batch size."""
