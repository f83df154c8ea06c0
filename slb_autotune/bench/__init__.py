"""The measurements that the README quotes: speed of a step, of the harness, and of a search."""
