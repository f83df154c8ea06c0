"""One trial: training by Algorithm 1 of the paper, the run's folder, and evaluation."""
