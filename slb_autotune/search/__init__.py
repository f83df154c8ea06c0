"""Searching: what is tried next, what is stopped, and what a study remembers."""
