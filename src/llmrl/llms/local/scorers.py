"""Scorers for causal (decoder-only) models, and for encoder-decoder models of the T5 family."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from llmrl.llms.local.candidate_scorer import LocalScorer, additive_mask, last_hidden_states
from llmrl.llms.local.loading import ModelKind
from llmrl.llms.local.token_tree import TokenIds, TreeBatch


class CausalScorer(LocalScorer):
    """Scorer whose input sequence is a prompt followed by the nodes of the token tree of its candidates.

    A node attends to the prompt and to its ancestors. Its position is that of its token in prompt plus candidate.

    A prompt has the special tokens that the tokenizer adds before a text (e.g. BOS), but not those that it adds after a
    text; a candidate has none. Prompt and candidate are tokenized as one text, so trailing spaces of a prompt belong to
    the first token of the candidate. If a token would contain characters of both, they are tokenized separately.
    """

    kind: ModelKind = "causal"

    def _check_architecture(self, module: Any) -> None:
        missing = {"position_ids", "logits_to_keep"} - set(inspect.signature(module.forward).parameters)
        if missing:
            raise self._architecture_error(module, f"it does not take {' and '.join(sorted(missing))}")
        if module.config.model_type == "gpt_neo":
            raise self._architecture_error(module, "its local layers mask by index in the sequence instead of position")

    def _select_prompt_tokens(self, ids: list[int], special_mask: list[int]) -> list[int]:
        end = len(ids)
        while end > 0 and special_mask[end - 1] and not all(special_mask[:end]):
            end -= 1
        return ids[:end]

    def _split_prompt(self, prompt: str) -> tuple[str, str]:
        prefix = prompt if self.settings.parity else prompt.rstrip(" ")
        return (prefix, prompt[len(prefix) :]) if prefix else (prompt, "")

    def _candidate_tokenization_context(self, prefix: str) -> str:
        # The last non-empty line suffices, because tokens do not contain characters of several lines.
        return "" if self.settings.parity else prefix[prefix.rfind("\n", 0, len(prefix.rstrip())) + 1 :]

    def _tokenize_continuations(self, context: str, texts: Sequence[str]) -> list[list[int]]:
        if not context:
            return self._tokenize_without_special(texts)
        [context_ids, *joint_ids] = self._tokenize_without_special([context, *(context + text for text in texts)])
        n_context_tokens = len(context_ids)
        return [
            ids[n_context_tokens:] if ids[:n_context_tokens] == context_ids else text_ids
            for ids, text_ids in zip(joint_ids, self._tokenize_without_special(texts), strict=True)
        ]

    def _max_sequence_length(self) -> int | None:
        # Texts must fit into a sliding window, because all layers get the same mask, which ignores windows.
        config = self._module.config.get_text_config()
        limit_names = ("max_position_embeddings", "sliding_window", "attention_chunk_size")
        limits = [getattr(config, name, None) for name in limit_names]
        return min((limit for limit in limits if limit is not None), default=None)

    def _run_model(self, prompts: Sequence[TokenIds], trees: TreeBatch) -> tuple[torch.Tensor, torch.Tensor, int]:
        module = self._module
        prompt_length = max(len(prompt) for prompt in prompts)
        # Prompts are padded on the left, so that in all rows the nodes begin at the same index.
        ids = torch.tensor([[*[0] * (prompt_length - len(prompt)), *prompt] for prompt in prompts]).to(module.device)
        n_padding = torch.tensor([prompt_length - len(prompt) for prompt in prompts]).to(module.device)
        node_tokens = trees.tokens[:, 1:].expand(len(prompts), -1)  # the root is the last token of the prompt
        positions = torch.arange(prompt_length, device=module.device) - n_padding[:, None]
        positions = torch.cat([positions, prompt_length - 1 - n_padding[:, None] + trees.depths[:, 1:]], dim=1)
        with last_hidden_states(module) as hidden_states:
            logits = module(
                input_ids=torch.cat([ids, node_tokens], dim=1),
                attention_mask=self._attention_mask(prompt_length, n_padding, trees),
                position_ids=positions.clamp(min=0),
                logits_to_keep=trees.n_nodes,
                use_cache=False,
            ).logits
        return logits, hidden_states[0][:, prompt_length - 1], len(prompts) * (prompt_length + trees.n_nodes - 1)

    def _attention_mask(self, prompt_length: int, n_padding: torch.Tensor, trees: TreeBatch) -> torch.Tensor:
        """Return the additive mask, [batch, 1, n_positions, n_positions]; prompts follow `n_padding` [batch] pads."""
        n_positions, device = prompt_length + trees.n_nodes - 1, n_padding.device
        allowed = torch.ones(len(n_padding), n_positions, n_positions, dtype=torch.bool, device=device).tril()
        allowed[:, prompt_length:, prompt_length:] = trees.ancestors[:, 1:, 1:]
        allowed[:, :, :prompt_length] &= (torch.arange(prompt_length, device=device) >= n_padding[:, None])[:, None]
        # Padding attends to itself, because the softmax over no position is NaN.
        allowed |= torch.eye(n_positions, dtype=torch.bool, device=device)
        return additive_mask(allowed, self._module.dtype)[:, None]

    def _logits_without_tree(self, prompt: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        return self._module(input_ids=torch.cat([prompt, candidate])[None]).logits[0][len(prompt) - 1 : -1]


class Seq2SeqScorer(LocalScorer):
    """Scorer whose encoder input is a prompt and whose decoder input is the token tree of all its candidates.

    Cross-attention keys and values are computed once per prompt, and are not copied for each candidate.

    A prompt has the special tokens of the model's tokenizer (T5: `</s>` at the end, as in pretraining). A candidate has
    none; it is tokenized separately, without leading spaces, and follows the model's `decoder_start_token_id`.
    """

    kind: ModelKind = "seq2seq"

    def _check_architecture(self, module: Any) -> None:
        try:
            layer_has_bias = [
                hasattr(block.layer[0].SelfAttention, "relative_attention_bias") for block in module.decoder.block
            ]
        except AttributeError:
            layer_has_bias = []
        if not layer_has_bias or not layer_has_bias[0] or any(layer_has_bias[1:]):
            raise self._architecture_error(module, "it has no position bias that all decoder layers share")
        if module.config.decoder_start_token_id is None:
            raise self._architecture_error(module, "its config names no decoder_start_token_id")

    def _select_prompt_tokens(self, ids: list[int], special_mask: list[int]) -> list[int]:
        return ids

    def _tokenize_continuations(self, context: str, texts: Sequence[str]) -> list[list[int]]:
        return self._tokenize_without_special(texts if self.settings.parity else [text.lstrip(" ") for text in texts])

    def _max_sequence_length(self) -> int | None:
        return None  # relative positions have no maximum

    def _run_model(self, prompts: Sequence[TokenIds], trees: TreeBatch) -> tuple[torch.Tensor, torch.Tensor, int]:
        module = self._module
        prompt_length = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[*prompt, *[0] * (prompt_length - len(prompt))] for prompt in prompts])
        mask = torch.arange(prompt_length) < torch.tensor([len(prompt) for prompt in prompts])[:, None]
        node_tokens = trees.tokens.clone()
        node_tokens[:, 0] = module.config.decoder_start_token_id
        with last_hidden_states(module) as hidden_states:
            logits = module(
                input_ids=ids.to(module.device),
                attention_mask=mask.to(module.device, torch.long),
                decoder_input_ids=node_tokens.expand(len(prompts), -1),
                decoder_attention_mask=self._decoder_mask(trees),
                use_cache=False,
            ).logits
        return logits, hidden_states[0][:, 0], ids.numel() + len(prompts) * trees.n_nodes

    def _decoder_mask(self, trees: TreeBatch) -> torch.Tensor:
        """Return the additive mask of self-attention, [n_trees, n_heads, n_nodes, n_nodes].

        The decoder adds the position bias of consecutive positions 0, 1, 2, ... to the attention scores. The mask
        replaces it by the bias of the nodes' depths, and prevents attention to nodes that are not ancestors.
        """
        attention = self._module.decoder.block[0].layer[0].SelfAttention
        position_bias = attention.compute_bias(trees.n_nodes, trees.n_nodes)[0]  # [n_heads, position, position]
        depth_bias = position_bias[:, trees.depths[:, :, None], trees.depths[:, None, :]].transpose(0, 1)
        return depth_bias - position_bias + additive_mask(trees.ancestors, position_bias.dtype)[:, None]

    def _logits_without_tree(self, prompt: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat([candidate.new_full((1,), self._module.config.decoder_start_token_id), candidate[:-1]])
        return self._module(input_ids=prompt[None], decoder_input_ids=inputs[None]).logits[0]
