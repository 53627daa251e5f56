"""The doctor: 35 checks of a memory and its stores, each with its reason and a command that fixes the problem."""
