"""How memories are found: plan, gather, fuse, rank and pack."""
