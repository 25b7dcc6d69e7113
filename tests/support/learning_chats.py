"""Conversations of tests of the training of chat models."""

import numpy as np

from llmrl.core.records import ChatRequest

SYSTEM = "Choose left or right.\nReply with JSON, for example the following:\n" + "".join(
    f"Rule {i}.\n" for i in range(12)
)
QUESTIONS = ('{"place": "north"}', '{"place": "south"}')

FORGETFUL_TEMPLATE = (
    "{% for message in messages %}{% if message.role != 'assistant' %}<|{{ message.role }}|>{{ message.content }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Template that drops earlier replies, so that a conversation is not one sequence of tokens."""


def request(*contents, repeat=0):
    """Return a request with the system message and alternate turns of user and assistant."""
    roles = ["user", "assistant"] * len(contents)
    turns = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    return ChatRequest(({"role": "system", "content": SYSTEM}, *turns), repeat=repeat)


def greedy_log_probs(chat, sequences):
    """Return log-probabilities of the sampled tokens from passes of one sequence each, without padding or prefix."""
    import torch

    result = []
    for sequence in sequences:
        ids = torch.tensor([sequence.tokens])
        with torch.no_grad():
            log_probs = chat.module(input_ids=ids).logits[0].log_softmax(-1).numpy()
        result.append(log_probs[sequence.positions - 1, np.array(sequence.tokens)[sequence.positions]])
    return result
