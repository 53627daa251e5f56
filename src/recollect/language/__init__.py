"""Text analysis, and rules that read statements. Nothing here needs a model or a store."""
