"""Answers to queries from every tier: search, ranking, updates and the prompt block."""
