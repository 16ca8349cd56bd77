"""Prompts and replies that are kept (`store_text`): read out of the bytes and redacted, in a process of its own."""
