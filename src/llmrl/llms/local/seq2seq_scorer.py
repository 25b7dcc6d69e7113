"""Scores under an encoder-decoder model of the T5 family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from llmrl.llms.local.loading import Kind
from llmrl.llms.local.scorer import LocalScorer, Pass, additive_mask, last_hidden_states
from llmrl.llms.local.tree import TokenIds, TreeBatch


class Seq2SeqScorer(LocalScorer):
    """The encoder reads each distinct prompt once; the decoder reads all candidates as one sequence of tree nodes.

    So cross-attention keys and values are computed once per prompt, and no copy of them is made for a candidate.

    Tokens: a prompt gets the special tokens the model's own tokenizer adds (T5: `</s>` at the end, as its encoder was
    trained); a candidate gets none, but `</s>` at the end with `add_eos`. It is a text of its own, which the decoder
    begins after the model's `decoder_start_token_id`: spaces before it, which part it from the prompt, are left out.
    The arguments are those of `LocalScorer`.
    """

    kind: Kind = "seq2seq"

    def _supported(self, module: Any) -> None:
        try:
            biases = [
                hasattr(block.layer[0].SelfAttention, "relative_attention_bias") for block in module.decoder.block
            ]
        except AttributeError:
            biases = []
        if not biases or not biases[0] or any(biases[1:]):
            raise self._unsupported(module, "it has no position bias that all decoder layers share")
        if module.config.decoder_start_token_id is None:
            raise self._unsupported(module, "its config names no decoder_start_token_id")

    def _prompt_tokens(self, ids: list[int], special: list[int]) -> list[int]:
        return ids

    def _continued(self, context: str, texts: Sequence[str]) -> list[list[int]]:
        return self._plain_tokens(texts if self.parity else [text.lstrip(" ") for text in texts])

    def _longest_text(self) -> int | None:
        return None  # positions are relative

    def _pass(self, prompts: Sequence[TokenIds], trees: TreeBatch) -> Pass:
        module = self._module
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        inside = torch.arange(longest) < lengths[:, None]
        nodes = trees.token.clone()
        nodes[:, 0] = module.config.decoder_start_token_id
        with last_hidden_states(module) as hidden:
            logits = module(
                input_ids=ids.to(module.device),
                attention_mask=inside.to(module.device, torch.long),
                decoder_input_ids=nodes.expand(len(prompts), -1),
                decoder_attention_mask=self._decoder_mask(trees),
                use_cache=False,
            ).logits
        return Pass(logits, hidden[0][:, 0], ids.numel() + len(prompts) * trees.n_nodes)

    def _decoder_mask(self, trees: TreeBatch) -> torch.Tensor:
        """What to add to self-attention scores, [n_trees, n_heads, n_nodes, n_nodes].

        The decoder takes the nodes for positions 0, 1, 2, ... of one text and adds the bias of those to the scores.
        The mask turns this bias into that of the nodes' depths, and closes the way to other branches.
        """
        attention = self._module.decoder.block[0].layer[0].SelfAttention
        bias = attention.compute_bias(trees.n_nodes, trees.n_nodes)[0]  # [n_heads, position, position]
        by_depth = bias[:, trees.depth[:, :, None], trees.depth[:, None, :]].transpose(0, 1)
        mask: torch.Tensor = by_depth - bias + additive_mask(trees.ancestors, bias.dtype)[:, None]
        return mask

    def _plain_logits(self, prompt: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        start = candidate.new_full((1,), self._module.config.decoder_start_token_id)
        inputs = torch.cat([start, candidate[:-1]])
        logits: torch.Tensor = self._module(input_ids=prompt[None], decoder_input_ids=inputs[None]).logits[0]
        return logits
