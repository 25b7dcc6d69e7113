"""Requests through the batch APIs of OpenAI and Anthropic: half the price, replies within a day."""
