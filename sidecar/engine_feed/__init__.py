"""The engine's events: from the socket to the figures of a record."""
