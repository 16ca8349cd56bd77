"""Whether a draft model is good enough, and for which scenarios."""
