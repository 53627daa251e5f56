"""What is kept and what it means: one module for each kind of memory."""
