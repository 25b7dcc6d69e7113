"""Supervised training of a small chat model on random valid replies, from which it learns the reply format."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.records import CHOSEN_MODEL, ChatReply, ChatRequest
from llmrl.core.spaces import ParameterSpace
from llmrl.core.unit_cube import from_unit
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.scripted import draw_reply
from llmrl.llms.structured import apply_parser

_MAX_DRAWS = 200
"""Maximum number of draws for one valid reply."""

Exchange = tuple[tuple[Mapping[str, str], ...], str]
"""Messages of a request, and the reply to it."""


class RandomLegalChat:
    """Chat model that draws random replies from the JSON schema of each request, and records requests and replies."""

    label = "random legal replies"

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []  # all requests so far, with their replies
        self._draw_counter = itertools.count()

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Return a random reply to each request, which its parser accepts."""
        replies = [self._draw_valid_reply(request) for request in requests]
        self.exchanges += [(request.messages, reply) for request, reply in zip(requests, replies, strict=True)]
        return [ChatReply(reply) for reply in replies]

    def _draw_valid_reply(self, request: ChatRequest) -> str:
        """Draw replies until the parser accepts one.

        Raises:
            ConfigError: the parser accepts none of `_MAX_DRAWS` replies.
        """
        assert request.schema is not None
        for _ in range(_MAX_DRAWS):
            reply = draw_reply(request.schema, str(next(self._draw_counter)))
            try:
                if request.parse is not None:
                    apply_parser(ChatReply(reply), request.parse)
            except InvalidReply:
                continue
            return reply
        raise ConfigError(
            f"llm=small_chat cannot learn the format of replies: none of {_MAX_DRAWS} random replies is valid; use "
            "another llm"
        )

    def check(self) -> None:
        """Do nothing, because replies are always available."""

    def fits(self, messages: Sequence[Mapping[str, str]], model: str = CHOSEN_MODEL) -> bool:
        """Return True: messages of any length are accepted."""
        return True

    def accepts_images(self, model: str = CHOSEN_MODEL) -> bool:
        """Return True: images are accepted and ignored."""
        return True

    def includes_reasoning(self, model: str = CHOSEN_MODEL) -> bool:
        """Return False: replies contain no reasoning."""
        return False

    def model_label(self, model: str = CHOSEN_MODEL) -> str:
        """Return the label of this chat model, whatever `model` is."""
        return self.label


class RandomProposalChat(RandomLegalChat):
    """Chat model that replies with random parameters of a policy, uniform within their bounds.

    Args:
        space: space of the parameters.
        rng: generator of the parameters.
    """

    def __init__(self, space: ParameterSpace, rng: np.random.Generator) -> None:
        super().__init__()
        self._space, self._rng = space, rng

    def _draw_valid_reply(self, request: ChatRequest) -> str:
        [vector] = from_unit(self._space, self._rng.random((1, self._space.dim))).tolist()
        return json.dumps({"params": [int(x) if x.is_integer() else x for x in vector]})


def train_format(folder: Path, exchanges: Sequence[Exchange], steps: int, learning_rate: float, seed: int) -> float:
    """Train the chat model in `folder` on `exchanges`, and save it in the same folder.

    The loss is the mean negative log-probability of the tokens of replies, not of prompts.

    Args:
        folder: folder with model and tokenizer.
        exchanges: requests with their replies.
        steps: number of steps of Adam, >= 1.
        learning_rate: learning rate of the first step, > 0; it decreases linearly to 0.
        seed: seed of the draws of batches.

    Returns:
        Loss of the last step, nats per token.
    """
    import torch

    from llmrl.chat_learning.token_network import TokenNetwork
    from llmrl.core.processes import ProcessGroup
    from llmrl.llms.local.learning import TokenSequence
    from llmrl.llms.local.loading import load_model, load_tokenizer
    from llmrl.llms.local.small import BATCH_SIZE, single_thread

    tokenizer = load_tokenizer(str(folder), revision=None)

    def encode(exchange: Exchange) -> TokenSequence:
        messages, reply = exchange
        chat_messages: list[dict[str, Any]] = [{"role": m["role"], "content": m["content"]} for m in messages]
        prompt = tokenizer.apply_chat_template(chat_messages, tokenize=False, add_generation_prompt=True)
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        ids = [*tokenizer(reply, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        tokens, positions = (*prompt_ids, *ids), np.arange(len(ids)) + len(prompt_ids)
        # The tokens are treated as sampled; the loss does not use the log-probabilities of sampling.
        return TokenSequence(tokens, positions, np.zeros_like(positions), log_probs=np.zeros(len(ids), np.float32))

    sequences = [encode(exchange) for exchange in exchanges]
    with single_thread():
        model: Any = load_model("causal", str(folder), revision=None, device="cpu", dtype="float32")
        options: dict[str, Any] = {"temperature": 1.0, "max_piece_tokens": 10**9, "precision": "float32"}
        options |= {"reuse_prefix": True, "recompute": False, "processes": ProcessGroup()}
        network = TokenNetwork(model.requires_grad_(True), **options)
        optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
        rng = np.random.Generator(np.random.PCG64(seed))
        for step in range(steps):
            # With a constant rate, the last batches would bias the model to some replies at the start of RL.
            optimizer.param_groups[0]["lr"] = learning_rate * (1 - step / steps)
            batch = [sequences[i] for i in rng.integers(len(sequences), size=min(BATCH_SIZE, len(sequences)))]
            targets = torch.tensor([token for s in batch for token in np.array(s.tokens)[s.positions]])
            loss = torch.nn.functional.nll_loss(network(batch), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        model.save_pretrained(folder)
    return float(loss.detach())
