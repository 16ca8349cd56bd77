"""Self-draft: a draft model from the lowest layers of its target."""
