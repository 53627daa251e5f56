"""How people reach us: translation only, no rules."""
