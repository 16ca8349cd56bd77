"""Offline jobs against an engine: qualify a draft model, choose k, soak, make a draft of the target itself."""
