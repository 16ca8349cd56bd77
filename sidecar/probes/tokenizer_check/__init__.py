"""Whether two models know the tokens by the same ids, by their files: read (files, table), compared (compare)."""
