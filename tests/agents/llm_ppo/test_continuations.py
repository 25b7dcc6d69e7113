"""Candidate actions are scored with the tokens that the model reads later in the history."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environments import make_env
from llmrl.agents.llm_ppo.network import LanguageActorCritic, LanguageNetworkSettings
from llmrl.core.errors import ConfigError
from llmrl.core.processes import ProcessGroup
from llmrl.llms.local.small import SmallModelShape, make_small_model
from models import make_causal_scorer, make_seq2seq_scorer
from some import mark_long_except_every
from tiny_models import make_tiny_causal, make_tiny_tokenizer


def metaspace(pre_tokenized):
    """Return a tokenizer like that of Llama 2.

    A sign marks the space before each word, and each text starts with a BOS.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    text = "turn left right go forward pick up drop toggle see a wall steps Action Observation Goal of the agent 0123"
    tokenizer.train_from_iterator([text] * 4, trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    if not pre_tokenized:  # as it came with Llama 2: the whole text is one word
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


TOKENIZERS = {
    "bytes": make_tiny_tokenizer,
    "metaspace": lambda: metaspace(True),
    "sentencepiece": lambda: metaspace(False),
}
"""As those of GPT-2 and Llama 3, of Llama 2 now, and of Llama 2 as it came."""


@pytest.fixture(scope="module")
def scorers(tmp_path_factory):
    """Return a scorer for each tokenizer, including a tokenizer that is trained here."""
    folders = {}
    for name, tokenizer in TOKENIZERS.items():
        folder = make_tiny_causal(tmp_path_factory.mktemp(name), window=4096)
        custom_tokenizer = tokenizer()
        custom_tokenizer.save_pretrained(folder)
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": len(custom_tokenizer)}))
        folders[name] = folder
    folders["made here"] = small = tmp_path_factory.mktemp("small")
    env = make_env("babyai_text", level="BabyAI-GoToLocal-v0", n_envs=4, template="plain")
    texts = [str(text) for text in env.reset(seed=0)["prompt"].ravel()]
    make_small_model(
        small, [*texts, *env.spec.action_names], shape=SmallModelShape(width=32, layers=1, vocabulary=320, longest=4096)
    )
    return {name: loaded(folder) for name, folder in folders.items()}


def loaded(folder, **options):
    """Load a scorer for tokens alone."""
    from transformers import AutoTokenizer

    scorer = make_causal_scorer(folder, **options)
    scorer.load = lambda: None
    scorer._tokenizer = AutoTokenizer.from_pretrained(folder)
    scorer._max_sequence_length = lambda: None
    return scorer


def score_tokens(scorer, prompt, candidates):
    """Return the tokens of the prompt and of each candidate, as the model receives them."""
    [query], _ = scorer._build_queries([prompt], [tuple(candidates)])
    rows = zip(query.tree.targets.tolist(), query.tree.lengths.tolist(), strict=True)
    return list(query.prompt), [ids[:n] for ids, n in rows]


def list_candidates(env):
    """Return the candidates that `agent=llm_ppo` scores in an environment."""
    from torch import nn

    class EmptyModule(nn.Module):
        """A model that only has a width."""

        class config:  # noqa: N801
            hidden_size = 4

            @classmethod
            def get_text_config(cls):
                return cls

    class AnyTokenizer:
        module = EmptyModule()

    settings = LanguageNetworkSettings("prompt", "scores", 1.0, [4], "relu", "float32", 64)
    return LanguageActorCritic(env.spec, AnyTokenizer(), torch.Generator(), settings, ProcessGroup()).action_texts


def rooms(**options):
    return make_env("babyai_text", level="BabyAI-GoToLocal-v0", n_envs=2, **{"template": "glam", **options})


VARIANTS = [
    {"template": template, **extra_options}
    for template in ("glam", "plain")
    for extra_options in (
        {},
        {"language": "fr"},
        {"actions": "synonyms"},
        {"replace": {"left": "to port", "wall": "fence"}},
    )
]


def next_prompts(env):
    """Yield the prompts before and after each action."""
    for action in range(env.spec.n_actions):
        prompt_text = str(env.reset(seed=3)["prompt"][0, 0])
        yield action, prompt_text, str(env.step(np.full((2, 1), action)).observation["prompt"][0, 0])


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_next_prompt_continues_previous(options):
    env = rooms(**options)
    candidates = list_candidates(env)
    assert len(set(candidates)) == 6
    for action, prompt_text, after in next_prompts(env):
        assert after.startswith(prompt_text + candidates[action])
        assert after[len(prompt_text + candidates[action])] in " \n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), mark_long_except_every(3, itertools.product([*TOKENIZERS, "made here"], VARIANTS))
)
def test_scores_cover_history_tokens(scorers, name, options):
    env, scorer = rooms(**options), scorers[name]
    candidates = list_candidates(env)
    for action, prompt_text, after in next_prompts(env):
        prompt, continuation = score_tokens(scorer, prompt_text, candidates)
        joined_text = prompt + continuation[action]
        full_ids = scorer._tokenizer(prompt_text + candidates[action])["input_ids"]
        special = scorer._tokenizer.eos_token_id if name == "made here" else None  # which it puts after a text
        assert joined_text == (full_ids[:-1] if full_ids[-1] == special else full_ids)
        # The last one may go on where the history does: "left" and a line's end.
        assert scorer._tokenizer(after)["input_ids"][: len(joined_text) - 1] == joined_text[:-1]


@pytest.mark.slow
@settings(max_examples=80)
@given(
    name=st.sampled_from(list(TOKENIZERS)),
    lines=st.lists(st.lists(st.sampled_from(["go", "a wall", "0:", "zé", "Action", "."]), max_size=4), max_size=4),
    spaces=st.integers(0, 3),
    words=st.lists(st.sampled_from(["turn", "left", "go", "é", "3", "up"]), min_size=1, max_size=3),
)
def test_text_is_tokenized_jointly(scorers, name, lines, spaces, words):
    scorer, prompt = scorers[name], "\n".join(["Goal:", *map(" ".join, lines), "Action:"]) + " " * spaces
    candidate = " " * (not spaces) + " ".join(words)
    read, [continuation] = score_tokens(scorer, prompt, [candidate])
    assert read + continuation == scorer._tokenizer(prompt + candidate)["input_ids"]


def test_continuation_is_tokenized_separately(scorers):
    scorer = scorers["bytes"]

    def tokens(text):
        return scorer._tokenize_without_special([text])[0]

    assert tokens("a the")[: len(tokens("a t"))] != tokens("a t")
    assert score_tokens(scorer, "a t", ["he"]) == (tokens("a t"), [tokens("he")])


def test_treatment_tokenizes_separately(scorers, tmp_path):
    folder = Path(scorers["metaspace"].model)
    env, plain = rooms(), scorers["metaspace"]._tokenizer
    prompt = str(env.reset(seed=0)["prompt"][0, 0])
    names = list(env.spec.action_names)
    assert prompt.endswith("Action 0: ") and list_candidates(env) == tuple(names)
    read, continuation = score_tokens(loaded(folder, parity=True), prompt, names)
    assert read == plain(prompt, add_special_tokens=False)["input_ids"]
    assert continuation == plain(names, add_special_tokens=False)["input_ids"]


def test_seq2seq_model_scores_decoder_text(tmp_path):
    env = rooms(template="plain")
    names = list(env.spec.action_names)
    make_small_model(
        tmp_path,
        [*names, "Goal: go"] * 9,
        "seq2seq",
        shape=SmallModelShape(width=16, layers=1, heads=2, vocabulary=300),
    )
    prompts = [str(env.reset(seed=0)["prompt"][0, 0])]
    scorer = make_seq2seq_scorer(tmp_path)
    with torch.no_grad():
        spaced_scores = scorer.score(prompts, list_candidates(env))
        assert torch.equal(spaced_scores, scorer.score(prompts, names))
    parity = make_seq2seq_scorer(tmp_path, parity=True)
    parity.load()
    read, continuation = score_tokens(parity, prompts[0], names)
    assert read == parity._tokenizer(prompts[0], add_special_tokens=False)["input_ids"]
    assert continuation == parity._tokenizer(names, add_special_tokens=False)["input_ids"]
    read, _ = score_tokens(scorer, prompts[0], names)
    assert read[-1] == scorer._tokenizer.eos_token_id


def test_replacements_reject_duplicate_actions():
    with pytest.raises(ConfigError, match="'turn left'"):
        list_candidates(rooms(replace={"right": "left"}))
