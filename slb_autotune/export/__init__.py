"""Trained networks as files for other programs: the packed low-bit file."""
