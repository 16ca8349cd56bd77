"""A tiny, really trained target and its drafts, with the text they were trained on and demo traffic."""
