"""Writing of turns and tasks to the tiers."""
