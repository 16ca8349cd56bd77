"""The checks, by subject: each judges facts, and does not look by itself."""
