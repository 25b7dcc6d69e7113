"""Fine-tuning of the language model that proposes policy parameters: data, rewards, methods, held-out evaluation."""
