"""Backend of llmrl for Ray clusters."""
