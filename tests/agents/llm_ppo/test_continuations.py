"""What a model scores after a prompt is what it reads there later, when the history shows what was done."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.agents.llm_ppo.network import LanguageActorCritic, LanguageNetworkSettings
from llmrl.core.errors import ConfigError
from llmrl.core.processes import ProcessGroup
from llmrl.core.seeding import Seeds
from llmrl.envs.babyai.vec_env import BabyAIEnv
from llmrl.llms.local.causal_scorer import CausalScorer
from llmrl.llms.local.seq2seq_scorer import Seq2SeqScorer
from llmrl.llms.local.small import make_small_model
from tiny_models import make_tiny_causal, make_tiny_tokenizer


def metaspace(pre_tokenized):
    """A tokenizer of the kind of Llama 2: words begin with a sign for the space, also the first word of a text, and
    every text begins with a BOS."""
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
    """A scorer of each tokenizer, one of a tokenizer made here, and what its tokenizer says of a text."""
    made = {}
    for name, tokenizer in TOKENIZERS.items():
        folder = make_tiny_causal(tmp_path_factory.mktemp(name), window=4096)
        own = tokenizer()
        own.save_pretrained(folder)
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": len(own)}))
        made[name] = folder
    made["made here"] = small = tmp_path_factory.mktemp("small")
    env = BabyAIEnv(Seeds(0), "BabyAI-GoToLocal-v0", n_envs=4, template="plain")
    texts = [str(text) for text in env.reset(seed=0)["prompt"].ravel()]
    make_small_model(small, [*texts, *env.spec.action_names], width=32, layers=1, vocabulary=320, longest=4096)
    return {name: loaded(folder) for name, folder in made.items()}


def loaded(folder, **options):
    """A scorer for tokens alone."""
    from transformers import AutoTokenizer

    scorer = CausalScorer(str(folder), **options)
    scorer.load = lambda: None
    scorer._tokenizer = AutoTokenizer.from_pretrained(folder)
    scorer._longest_text = lambda: None
    return scorer


def scored_tokens(scorer, prompt, candidates):
    """The tokens of the prompt and of each candidate, as the model is given them."""
    [query], _ = scorer._queries([prompt], [tuple(candidates)])
    rows = zip(query.tree.target.tolist(), query.tree.length.tolist(), strict=True)
    return list(query.prompt), [ids[:n] for ids, n in rows]


def candidates_of(env):
    """What `agent=llm_ppo` scores in an environment."""
    from torch import nn

    class Nothing(nn.Module):
        """A model of which only the width is asked."""

        class config:  # noqa: N801
            hidden_size = 4

            @classmethod
            def get_text_config(cls):
                return cls

    class Anything:
        module = Nothing()

    settings = LanguageNetworkSettings("prompt", "scores", 1.0, [4], "relu", "float32", 64)
    return LanguageActorCritic(env.spec, Anything(), torch.Generator(), settings, ProcessGroup()).candidates


def rooms(**options):
    return BabyAIEnv(Seeds(0), "BabyAI-GoToLocal-v0", n_envs=2, **{"template": "glam", **options})


VARIANTS = [
    {"template": template, **more}
    for template in ("glam", "plain")
    for more in ({}, {"language": "fr"}, {"actions": "synonyms"}, {"replace": {"left": "to port", "wall": "fence"}})
]


def next_prompts(env):
    """For each action the prompt before it and the one after."""
    for action in range(env.spec.n_actions):
        before = str(env.reset(seed=3)["prompt"][0, 0])
        yield action, before, str(env.step(np.full((2, 1), action)).observation["prompt"][0, 0])


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_prompt_goes_on_as_the_next_one_shows_it(options):
    env = rooms(**options)
    candidates = candidates_of(env)
    assert len(set(candidates)) == 6
    for action, before, after in next_prompts(env):
        assert after.startswith(before + candidates[action])
        assert after[len(before + candidates[action])] in " \n"


@pytest.mark.slow
@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("name", [*TOKENIZERS, "made here"])
def test_tokens_that_are_scored_are_those_of_the_history(scorers, name, options):
    env, scorer = rooms(**options), scorers[name]
    candidates = candidates_of(env)
    for action, before, after in next_prompts(env):
        prompt, scored = scored_tokens(scorer, before, candidates)
        together = prompt + scored[action]
        whole = scorer._tokenizer(before + candidates[action])["input_ids"]
        special = scorer._tokenizer.eos_token_id if name == "made here" else None  # which it puts after a text
        assert together == (whole[:-1] if whole[-1] == special else whole)
        # The last one may go on where the history does: "left" and a line's end.
        assert scorer._tokenizer(after)["input_ids"][: len(together) - 1] == together[:-1]


@pytest.mark.slow
@settings(max_examples=80)
@given(
    name=st.sampled_from(list(TOKENIZERS)),
    lines=st.lists(st.lists(st.sampled_from(["go", "a wall", "0:", "zé", "Action", "."]), max_size=4), max_size=4),
    spaces=st.integers(0, 3),
    words=st.lists(st.sampled_from(["turn", "left", "go", "é", "3", "up"]), min_size=1, max_size=3),
)
def test_a_text_is_read_as_one_wherever_words_are_apart(scorers, name, lines, spaces, words):
    scorer, prompt = scorers[name], "\n".join(["Goal:", *map(" ".join, lines), "Action:"]) + " " * spaces
    candidate = " " * (not spaces) + " ".join(words)
    read, [scored] = scored_tokens(scorer, prompt, [candidate])
    assert read + scored == scorer._tokenizer(prompt + candidate)["input_ids"]


def test_a_word_that_goes_on_is_tokenised_apart(scorers):
    scorer = scorers["bytes"]

    def tokens(text):
        return scorer._plain_tokens([text])[0]

    assert tokens("a the")[: len(tokens("a t"))] != tokens("a t")
    assert scored_tokens(scorer, "a t", ["he"]) == (tokens("a t"), [tokens("he")])


def test_the_published_treatment_tokenises_apart_and_adds_nothing(scorers, tmp_path):
    folder = Path(scorers["metaspace"].model)
    env, plain = rooms(), scorers["metaspace"]._tokenizer
    prompt = str(env.reset(seed=0)["prompt"][0, 0])
    names = list(env.spec.action_names)
    assert prompt.endswith("Action 0: ") and candidates_of(env) == tuple(names)
    read, scored = scored_tokens(loaded(folder, parity=True), prompt, names)
    assert read == plain(prompt, add_special_tokens=False)["input_ids"]
    assert scored == plain(names, add_special_tokens=False)["input_ids"]
    read, _ = scored_tokens(loaded(folder, parity=True, prompt_special_tokens=True), prompt, names)
    assert read == plain(prompt)["input_ids"] and read[0] == plain.bos_token_id
    read, _ = scored_tokens(loaded(folder, prompt_special_tokens=False), prompt, names)
    assert read == plain(prompt.rstrip(), add_special_tokens=False)["input_ids"]


def test_a_seq2seq_model_answers_with_a_text_of_its_own(tmp_path):
    env = rooms(template="plain")
    names = list(env.spec.action_names)
    make_small_model(tmp_path, [*names, "Goal: go"] * 9, "seq2seq", width=16, layers=1, heads=2, vocabulary=300)
    prompts = [str(env.reset(seed=0)["prompt"][0, 0])]
    scorer = Seq2SeqScorer(str(tmp_path))
    with torch.no_grad():
        after_a_space = scorer.score(prompts, candidates_of(env))
        assert torch.equal(after_a_space, scorer.score(prompts, names))
    parity = Seq2SeqScorer(str(tmp_path), parity=True)
    parity.load()
    read, scored = scored_tokens(parity, prompts[0], names)
    assert read == parity._tokenizer(prompts[0], add_special_tokens=False)["input_ids"]
    assert scored == parity._tokenizer(names, add_special_tokens=False)["input_ids"]
    read, _ = scored_tokens(scorer, prompts[0], names)
    assert read[-1] == scorer._tokenizer.eos_token_id


def test_replacements_that_make_two_actions_one_are_refused():
    with pytest.raises(ConfigError, match=r"two actions of env=.* are called 'turn left'"):
        candidates_of(rooms(replace={"right": "left"}))
