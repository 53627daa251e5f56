"""Scans of texts before they are stored: secrets, personal data and prompt injection."""
