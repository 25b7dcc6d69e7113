"""Learning algorithms: PPO, Q-learning, behavioral cloning and meta-gradients."""
