"""Collection of rollouts and episodes from a policy and environments, with their observers and evaluations."""
