"""One trial: training by Algorithm 1 of the paper, its folder, and what the network is worth."""
