"""Memory tiers: working, conversation, episodic, semantic and procedural memory, and quarantine."""
