"""How good retrieval is, measured on public data."""
