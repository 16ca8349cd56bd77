"""Starts vLLM with a target and a draft model, and keeps it running."""
