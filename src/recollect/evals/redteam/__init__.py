"""A red team of our own: scripted injections and ordinary texts, and what of them reaches a memory's answers."""
