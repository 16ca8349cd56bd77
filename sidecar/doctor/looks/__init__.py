"""Gathers facts: each look has its own time limit, and none changes what it looks at."""
