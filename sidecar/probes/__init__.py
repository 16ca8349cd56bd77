"""Records and drafts -> readings over bounded windows.

Pure, but for `vocabulary` and `decoder`, which read tokenizers.
"""
