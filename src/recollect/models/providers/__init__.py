"""Clients of model providers, one module for each SDK."""
