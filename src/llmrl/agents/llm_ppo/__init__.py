"""Language model as a policy, which scores the texts of actions and is trained by PPO."""
