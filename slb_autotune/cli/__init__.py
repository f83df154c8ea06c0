"""slb-autotune, the command line: one file per group of commands."""
