"""Where memories live: backends behind three narrow protocols."""
