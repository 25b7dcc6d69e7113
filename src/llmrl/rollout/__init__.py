"""From a policy and games to rollouts and episodes: the collector, who watches it, and evaluations."""
