"""Embedding models and language models behind small protocols."""
