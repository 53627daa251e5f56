"""Measures of retrieval quality on public data."""
