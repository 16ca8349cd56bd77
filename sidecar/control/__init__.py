"""Decisions: how requests are served, and why."""
