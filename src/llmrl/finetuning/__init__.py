"""Fine-tuning of the language model that proposes policy parameters: datasets, rewards, methods, evaluation."""
