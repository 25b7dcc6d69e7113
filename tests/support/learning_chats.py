"""Conversations, settings and trajectories for tests of the training of chat models."""

import numpy as np

from llmrl.chat_learning.grpo import GRPO
from llmrl.core.option_files import load_option
from llmrl.core.records import ChatRequest
from llmrl.llms.local.learning import Trajectory, Turn
from llmrl.llms.local.lora import Lora

SYSTEM = "Choose left or right.\nReply with JSON, for example the following:\n" + "".join(
    f"Rule {i}.\n" for i in range(12)
)
QUESTIONS = ('{"place": "north"}', '{"place": "south"}')

COMPLETE_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% if message.role == 'assistant' %}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Template that includes system messages, so that prompts have a common prefix."""
FORGETFUL_TEMPLATE = (
    "{% for message in messages %}{% if message.role != 'assistant' %}<|{{ message.role }}|>{{ message.content }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Template that omits earlier replies, so that a conversation is not a single sequence of tokens."""


def make_request(*contents, repeat=0):
    """Return a request with the system message and alternate turns of user and assistant."""
    roles = ["user", "assistant"] * len(contents)
    turns = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    return ChatRequest(({"role": "system", "content": SYSTEM}, *turns), repeat=repeat)


def compute_log_probs(chat, sequences):
    """Return the log-probabilities of the sampled tokens, computed for each sequence without padding or prefix."""
    import torch

    result = []
    for sequence in sequences:
        ids = torch.tensor([sequence.tokens])
        with torch.no_grad():
            log_probs = chat.module(input_ids=ids).logits[0].log_softmax(-1).numpy()
        result.append(log_probs[sequence.positions - 1, np.array(sequence.tokens)[sequence.positions]])
    return result


def make_settings(**options):
    """Return the settings of `llm/learn=grpo` with some options changed."""
    defaults = load_option("llm/learn", "grpo")
    lora = {name: value for name, value in defaults.pop("lora").items() if name != "_target_"}
    del defaults["_target_"]
    return GRPO(**defaults | {"lora": Lora(**lora)} | options)


def sample_trajectories(chat, n=8, seed=0, reward=lambda game, step, reply: 0.0):
    """Sample `n` trajectories of two turns each, with rewards from a function of game, step and reply."""
    trajectories = [Trajectory([], game, 0) for game in range(n)]
    contents = [[] for _ in range(n)]
    for step in range(2):
        for turns in contents:
            turns.append(QUESTIONS[step])
        replies = chat.complete([make_request(*contents[game], repeat=1000 * seed + game) for game in range(n)])
        for game, reply in enumerate(replies):
            contents[game].append(reply.text)
            turn = Turn(reply.sample, QUESTIONS[step], True, step, reward(game, step, reply))
            trajectories[game].turns.append(turn)
    return trajectories
