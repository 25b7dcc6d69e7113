"""Scores of candidate texts under an encoder-decoder model of the T5 family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from llmrl.llms.local.candidate_scorer import ForwardPass, LocalScorer, additive_mask, last_hidden_states
from llmrl.llms.local.loading import Kind
from llmrl.llms.local.token_tree import TokenIds, TreeBatch


class Seq2SeqScorer(LocalScorer):
    """Scorer whose encoder reads each distinct prompt once and whose decoder reads all candidates as one token tree.

    Cross-attention keys and values are computed once per prompt and never copied per candidate.

    Tokens: a prompt gets the special tokens of the model's own tokenizer (T5: `</s>` at the end, as in pretraining). A
    candidate gets none. It is a separate text after the model's `decoder_start_token_id`, without the leading spaces
    that separate it from the prompt.
    """

    kind: Kind = "seq2seq"

    def _check_architecture(self, module: Any) -> None:
        try:
            biases = [
                hasattr(block.layer[0].SelfAttention, "relative_attention_bias") for block in module.decoder.block
            ]
        except AttributeError:
            biases = []
        if not biases or not biases[0] or any(biases[1:]):
            raise self._unsupported_error(module, "it has no position bias that all decoder layers share")
        if module.config.decoder_start_token_id is None:
            raise self._unsupported_error(module, "its config names no decoder_start_token_id")

    def _prompt_tokens(self, ids: list[int], special: list[int]) -> list[int]:
        return ids

    def _tokenize_continuations(self, context: str, texts: Sequence[str]) -> list[list[int]]:
        return self._plain_tokens(texts if self.settings.parity else [text.lstrip(" ") for text in texts])

    def _max_length(self) -> int | None:
        return None  # positions are relative

    def _pass(self, prompts: Sequence[TokenIds], trees: TreeBatch) -> ForwardPass:
        module = self._module
        prompt_length = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[*prompt, *[0] * (prompt_length - len(prompt))] for prompt in prompts])
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        mask = torch.arange(prompt_length) < lengths[:, None]
        nodes = trees.token.clone()
        nodes[:, 0] = module.config.decoder_start_token_id
        with last_hidden_states(module) as hidden:
            logits = module(
                input_ids=ids.to(module.device),
                attention_mask=mask.to(module.device, torch.long),
                decoder_input_ids=nodes.expand(len(prompts), -1),
                decoder_attention_mask=self._decoder_mask(trees),
                use_cache=False,
            ).logits
        return ForwardPass(logits, hidden[0][:, 0], ids.numel() + len(prompts) * trees.n_nodes)

    def _decoder_mask(self, trees: TreeBatch) -> torch.Tensor:
        """Return the additive mask of self-attention, [n_trees, n_heads, n_nodes, n_nodes].

        The decoder adds the position bias of nodes 0, 1, 2, ... as if they were one text. The mask replaces it by the
        bias of the nodes' depths, and blocks attention to other branches.
        """
        attention = self._module.decoder.block[0].layer[0].SelfAttention
        bias = attention.compute_bias(trees.n_nodes, trees.n_nodes)[0]  # [n_heads, position, position]
        depth_bias = bias[:, trees.depth[:, :, None], trees.depth[:, None, :]].transpose(0, 1)
        mask: torch.Tensor = depth_bias - bias + additive_mask(trees.ancestors, bias.dtype)[:, None]
        return mask

    def _plain_logits(self, prompt: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        start = candidate.new_full((1,), self._module.config.decoder_start_token_id)
        inputs = torch.cat([start, candidate[:-1]])
        logits: torch.Tensor = self._module(input_ids=prompt[None], decoder_input_ids=inputs[None]).logits[0]
        return logits
