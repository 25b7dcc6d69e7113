"""Training of language models: tiny models with random weights, real tokenizers, and the real loading code."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corridor import Corridor
from llmrl.agents.llm_ppo.agent import LanguagePPOAgent, LanguagePPOSettings
from llmrl.core.errors import CheckpointError, ConfigError, Diverged, LLMError
from llmrl.core.processes import ProcessGroup
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.text_array import TextArray
from llmrl.llms.local.lora import Lora, disable_adapters
from llmrl.llms.local.small import SmallModelShape, make_small_model
from llmrl.rollout.collector import Collector
from models import make_causal_scorer, make_seq2seq_scorer
from ppo_settings import PLAIN
from some import mark_long_except

pytestmark = pytest.mark.slow

SCORERS = {"seq2seq": make_seq2seq_scorer, "causal": make_causal_scorer}
PPO = replace(PLAIN, learning_rate=1e-3, gamma=0.99, epochs=2, minibatch_size=32, value_clip=None)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    env = Corridor(16)
    texts = []
    for seed in range(8):
        texts += [str(t) for t in env.reset(seed=seed)["prompt"].ravel()]
    models = {}
    for kind in SCORERS:
        models[kind] = tmp_path_factory.mktemp(kind)
        make_small_model(
            models[kind],
            texts + list(env.spec.action_names) * 50,
            kind,
            shape=SmallModelShape(width=32, layers=1, vocabulary=320),
        )
    return models


def make_agent(folders, env, kind="seq2seq", ppo=PPO, seed=0, **changed):
    scorer = changed.pop("scorer", None) or SCORERS[kind](str(folders[kind]))
    arguments = {
        "text_channel": "prompt",
        "actions": "scores",
        "temperature": 1.0,
        "tune": "full",
        "lora": Lora(rank=4, alpha=8.0),
        "head_hidden": [16],
        "head_activation": "relu",
        "precision": "float32",
        "recompute": False,
        "piece_tokens": 4096,
        "kl_coefficient": 0.0,
        "init_from": None,
    }
    settings = LanguagePPOSettings(**{**arguments, "ppo": ppo, **changed})
    return LanguagePPOAgent(env.spec, settings, Seeds(seed), "cpu", scorer, ProcessGroup(), has_principal=False)


def collect_rollout(agent, env, steps=8, seed=0):
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(seed)
    return collector.collect(steps, Seeds(seed).torch("actions"))


def weights(agent):
    return {name: p.detach().clone() for name, p in agent.policy.named_parameters()}


def changed_since(weights_before, agent):
    return {name for name, p in agent.policy.named_parameters() if not torch.equal(weights_before[name], p)}


@pytest.mark.parametrize("kind", mark_long_except(["causal"], ["seq2seq", "causal"]))
def test_agent_learns_goal(folders, kind):
    env = Corridor(32, length=3, horizon=2)
    agent = make_agent(folders, env, kind)
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(0)
    success_rates = []
    for i in range(25):
        rollout = collector.collect(4, Seeds(i).torch("actions"))
        agent.update(rollout, Seeds(i).torch("minibatches"))
        success_rates = [episode.summaries["won"] for episode in rollout.episodes]
    assert np.mean(success_rates) > 0.9


def test_ratios_are_one_for_equal_weights(folders):
    env = Corridor(8)
    frozen = replace(PPO, learning_rate=1e-12)
    agent = make_agent(folders, env, ppo=frozen)
    metrics = agent.update(collect_rollout(agent, env), Seeds(0).torch("minibatches"))
    assert abs(metrics["loss/kl"]) < 1e-9
    assert metrics["loss/clip_fraction"] == 0


def test_microbatches_keep_gradient(folders):
    env = Corridor(8)
    metrics = []
    for piece_tokens in (100_000, 1):
        agent = make_agent(folders, env, piece_tokens=piece_tokens)
        network = agent.policy.network
        prompts = [str(t) for t in env.reset(seed=3)["prompt"].ravel()]
        batch = {"prompt": TextArray.from_texts(prompts), "action": torch.zeros(8, dtype=torch.int64)}
        pieces = list(network.split_into_pieces(batch))
        assert sum(share for _, share in pieces) == pytest.approx(1.0)
        assert len(pieces) == (1 if piece_tokens > 1 else len(set(prompts)))
        for piece, share in pieces:
            logits, value = network(piece)
            ((logits.log_softmax(-1)[:, 0] + value.square()).mean() * share).backward()
        metrics.append(torch.cat([p.grad.flatten() for p in agent.policy.parameters() if p.grad is not None]))
    assert metrics[0].abs().max() > 0
    torch.testing.assert_close(metrics[0], metrics[1], rtol=1e-4, atol=1e-6)


def team_rollout(players):
    """Collect a rollout with equal and different prompts, then change the probabilities of actions."""
    draws, shape = np.random.default_rng(0), (4, 4, players)
    texts = np.array([f"Goal of the agent: go east \n Observation: {'on ' * i}" for i in range(6)], dtype=object)
    action = torch.from_numpy(draws.integers(2, size=shape))
    log_prob = torch.from_numpy(draws.normal(np.log(0.5), 0.3, size=shape)).float()
    value, reward, after = (torch.from_numpy(draws.normal(size=shape)).float() for _ in range(3))
    done = torch.zeros(shape[:2], dtype=torch.bool)
    prompts = TextArray.from_texts(texts[draws.integers(len(texts), size=shape)])
    return Rollout(
        {"prompt": prompts}, None, action, log_prob, value, reward, reward, done, done, done, after, {}, []
    )  # fmt: skip


@pytest.mark.parametrize("piece_tokens", [200, 1])
def test_microbatches_keep_joint_ratio(folders, piece_tokens):
    env = type("", (), {"spec": replace(Corridor(4).spec, n_agents=3)})
    teams = replace(PPO, joint_ratio=True, minibatch_size=24)
    metrics = []
    for tokens in (100_000, piece_tokens):
        agent = make_agent(folders, env, ppo=teams, piece_tokens=tokens)
        metrics.append(agent.update(team_rollout(3), Seeds(0).torch("minibatches")))
        metrics[-1].pop("language/tokens")
    assert metrics[0]["loss/kl"] > 0.01
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-3, abs=1e-5)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 400))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_microbatches_contain_full_joint_actions(folders, seed, players, piece_tokens):
    draws = np.random.default_rng(seed)
    network = make_agent(folders, Corridor(4), piece_tokens=piece_tokens).policy.network
    n = 7 * players
    texts = [f"go {'far ' * int(k)}" for k in draws.integers(6, size=n)]
    order = torch.from_numpy(draws.permutation(n))
    batch = {"prompt": TextArray.from_texts(texts), "action": torch.arange(n)}
    if players > 1:
        batch["joint_action_index"] = (torch.arange(n) // players)[order]
    batches = []
    for piece, share in network.split_into_pieces(batch):
        assert share == len(piece["action"]) / n
        batches += piece["action"].tolist()
        if players > 1:
            actions, numbers = piece["action"], piece["joint_action_index"]
            assert numbers.bincount().tolist() == [players] * (len(numbers) // players)
            for number in numbers.unique():
                assert batch["joint_action_index"][actions[numbers == number]].unique().numel() == 1
        prompts, places = piece["prompt"].unique()
        numbers = piece.get("joint_action_index", torch.arange(len(places)))
        read = {frozenset(places[numbers == number].tolist()) for number in numbers.tolist()}
        assert len(read) == 1 or len(prompts) * max(network.scorer.count_prompt_tokens(prompts)) <= piece_tokens
    assert sorted(batches) == list(range(n))


def test_values_are_regressed_per_state(folders):
    """Check that values are not regressed to the mean of a minibatch by broadcasting [B] against [B, 1]."""
    env = Corridor(8)
    only_values = replace(PPO, entropy_coefficient=0.0, minibatch_size=None, epochs=1)
    agent = make_agent(folders, env, ppo=only_values)
    rollout = collect_rollout(agent, env)
    _, target = agent._ppo.estimate_advantages(rollout)
    metrics = agent.update(rollout, Seeds(0).torch("minibatches"))
    assert metrics["loss/value"] == pytest.approx(0.5 * float((rollout.value - target).square().mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("tune", "moves"),
    [
        ("full", {"language", "critic"}),
        ("lora", {"lora", "critic"}),
        ("heads", {"actor", "critic"}),
    ],
)
@pytest.mark.parametrize("kind", ["seq2seq", "causal"])
def test_only_trainable_weights_change(folders, tune, moves, kind):
    env = Corridor(8)
    agent = make_agent(folders, env, kind, tune=tune, actions="head" if tune == "heads" else "scores")
    initial_weights = weights(agent)
    agent.update(collect_rollout(agent, env), Seeds(0).torch("minibatches"))

    def candidate_text(name):
        return next((part for part in ("lora_", "critic", "actor") if part in name), "language").rstrip("_")

    assert {candidate_text(name) for name in changed_since(initial_weights, agent)} == moves
    modules = {name.rpartition(".lora_")[0] or name for name in agent.state_dict()["policy"]}
    assert len(modules) <= len(initial_weights)
    assert {candidate_text(name) for name in agent.state_dict()["policy"]} == moves


def test_frozen_agent_plays(folders):
    env = Corridor(4)
    agent = make_agent(folders, env, tune="nothing")
    assert not agent.learns
    assert agent.update(collect_rollout(agent, env), Seeds(0).torch("x")) == {}
    assert agent.describe()["trainable"] == 0


def test_head_replaces_scores(folders):
    env = Corridor(8)
    agent = make_agent(folders, env, actions="head")
    initial_weights = weights(agent)
    agent.update(collect_rollout(agent, env), Seeds(0).torch("minibatches"))
    assert any("actor" in name for name in changed_since(initial_weights, agent))
    with pytest.raises(ConfigError, match=r"outputs?.*2 actions"):
        agent.adapt(Corridor(8, names=("go east", "go west", "rest")).spec)


def test_action_names_change_candidates(folders):
    env = Corridor(2)
    agent = make_agent(folders, env)
    prompts = [str(t) for t in env.reset()["prompt"].ravel()]
    probabilities = agent.policy.probabilities(prompts)
    agent.adapt(Corridor(2, names=("walk east", "walk west", "rest")).spec)
    after = agent.policy.probabilities(prompts)
    assert probabilities.shape == (2, 2)
    assert after.shape == (2, 3)
    torch.testing.assert_close(after.sum(-1), torch.ones(2))


def test_anchor_limits_policy_change(folders):
    env = Corridor(16)
    drift = {}
    for beta in (1e-6, 20.0):
        agent = make_agent(folders, env, kl_coefficient=beta)
        for i in range(6):
            metrics = agent.update(collect_rollout(agent, env, seed=i), Seeds(i).torch("minibatches"))
            if i == 0:
                first = metrics["loss/reference_kl"]
        drift[beta] = metrics["loss/reference_kl"]
        assert first < drift[beta] or beta > 1
    assert drift[20.0] < 0.2 * drift[1e-6]


def test_adapter_anchor_is_base_model(folders):
    env = Corridor(8)
    plain = make_agent(folders, env, tune="nothing")
    agent = make_agent(folders, env, tune="lora", kl_coefficient=0.01)
    prompts = sorted({str(t) for t in env.reset(seed=5)["prompt"].ravel()})
    for i in range(3):
        agent.update(collect_rollout(agent, env, seed=i), Seeds(i).torch("minibatches"))
    network = agent.policy.network
    with torch.no_grad():
        with disable_adapters(network.language):
            off, _ = network.compute_outputs(prompts)
        on, _ = network.compute_outputs(prompts)
        base_scores, _ = plain.policy.network.compute_outputs(prompts)
    torch.testing.assert_close(off, base_scores, rtol=1e-5, atol=1e-5)
    assert (on - base_scores).abs().max() > 1e-3
    assert any(p.requires_grad for p in network.language.parameters())


def test_dropout_keeps_scores(folders):
    """Check training mode, too, which recomputation of activations needs."""
    env = Corridor(8)
    prompts = [str(t) for t in env.reset(seed=1)["prompt"].ravel()]
    scorer = SCORERS["seq2seq"](str(folders["seq2seq"]), weights="random")
    scorer.load()
    for module in scorer.module.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    agent = make_agent(folders, env, scorer=scorer, recompute=True)
    network = agent.policy.network
    texts = TextArray.from_texts(prompts)
    with torch.no_grad():
        resting, _ = network({"prompt": texts})
    trainable_outputs, _ = network({"prompt": texts})
    assert network.language.training
    torch.testing.assert_close(trainable_outputs, resting, rtol=1e-5, atol=1e-6)
    trainable_outputs.sum().backward()
    assert network.language.get_input_embeddings().weight.grad.abs().max() > 0


def test_half_precision_adapter_is_float32(folders):
    env = Corridor(8)
    scorer = SCORERS["causal"](str(folders["causal"]), dtype="bfloat16")
    agent = make_agent(folders, env, tune="lora", scorer=scorer)
    assert {p.dtype for p in agent.policy.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert {p.dtype for p in agent.policy.parameters() if p.requires_grad} == {torch.float32}
    initial_weights = weights(agent)
    agent.update(collect_rollout(agent, env), Seeds(0).torch("minibatches"))
    changes = changed_since(initial_weights, agent)
    assert changes == {name for name, p in agent.policy.named_parameters() if p.requires_grad}
    # All of what is trained has moved, or steps were lost in rounding.
    last = weights(agent)
    assert all((last[name] != initial_weights[name]).float().mean() > 0.95 for name in changes if "lora_A" in name)


@pytest.mark.parametrize("tune", ["full", "lora"])
@pytest.mark.parametrize("kind", ["seq2seq", "causal"])
def test_gradient_checkpointing_keeps_gradient(folders, kind, tune):
    env = Corridor(8)
    prompts = TextArray.from_texts([str(t) for t in env.reset(seed=3)["prompt"].ravel()])
    metrics = []
    for recompute in (False, True):
        agent = make_agent(folders, env, kind, tune=tune, recompute=recompute)
        with torch.no_grad():  # an adapter that is no change at all hides half of its own gradient
            for i, (name, p) in enumerate(agent.policy.named_parameters()):
                if "lora_B" in name:
                    p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) * 0.1)
        network = agent.policy.network
        logits, value = network({"prompt": prompts})
        assert network.language.training == recompute
        (logits.log_softmax(-1)[:, 0] + value.square()).mean().backward()
        metrics.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
    assert metrics[0].keys() == metrics[1].keys()
    assert sum(x.abs().max() > 1e-6 for x in metrics[0].values()) > len(metrics[0]) / 2
    for name, x in metrics[0].items():
        torch.testing.assert_close(x, metrics[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_update_after_resume_is_bit_identical(folders, tune):
    env = Corridor(8)
    agents = [make_agent(folders, env, tune=tune) for _ in range(2)]
    agents[0].update(collect_rollout(agents[0], env), Seeds(0).torch("minibatches"))
    agents[1].load_state_dict(copy.deepcopy(agents[0].state_dict()))
    for agent in agents:
        agent.update(collect_rollout(agent, Corridor(8), seed=1), Seeds(1).torch("minibatches"))
    first, second = (agent.state_dict()["policy"] for agent in agents)
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def test_initial_weights_follow_seed(folders):
    folder = str(folders["seq2seq"])
    models = [make_seq2seq_scorer(folder, weights="random", seeds=Seeds(seed)) for seed in (0, 0, 1)]
    first, second, third = (torch.cat([p.flatten() for p in scorer.module.parameters()]) for scorer in models)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    words = make_seq2seq_scorer(folder, weights="embeddings", seeds=Seeds(0)).module
    pretrained = make_seq2seq_scorer(folder).module
    assert torch.equal(words.shared.weight, pretrained.shared.weight)
    inner = "encoder.block.0.layer.0.SelfAttention.q.weight"
    assert not torch.equal(words.get_parameter(inner), pretrained.get_parameter(inner))


def test_separate_output_layer_is_initialized(folders, tmp_path):
    from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

    folder = folders["seq2seq"]
    settings = T5Config.from_pretrained(folder).to_dict()
    settings.pop("scale_decoder_outputs", None)
    model = T5ForConditionalGeneration(T5Config(**{**settings, "tie_word_embeddings": False}))
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    words = make_seq2seq_scorer(tmp_path, weights="embeddings", seeds=Seeds(0)).module
    pretrained = make_seq2seq_scorer(tmp_path).module
    random_model = make_seq2seq_scorer(tmp_path, weights="random", seeds=Seeds(0)).module
    assert torch.equal(words.shared.weight, pretrained.shared.weight)
    assert torch.equal(words.lm_head.weight, random_model.lm_head.weight)
    assert not torch.equal(words.lm_head.weight, pretrained.lm_head.weight)
    assert not torch.equal(random_model.lm_head.weight, random_model.shared.weight)


def test_scores_match_reference(folders):
    folder = str(folders["seq2seq"])
    prompts, names = ["Goal of the agent: go east"], ["go east", "go to the far west"]
    plain = make_seq2seq_scorer(folder).score(prompts, names)
    words = make_seq2seq_scorer(folder, length_normalization="words").score(prompts, names)
    torch.testing.assert_close(words, plain / torch.tensor([[2.0, 5.0]]))
    scorer = make_seq2seq_scorer(folder, parity=True)
    reference_scores = scorer.score(prompts, names).detach()
    scorer.load()
    tokens = [scorer._tokenizer(name, add_special_tokens=False)["input_ids"] for name in names]
    prompt = torch.tensor(scorer._tokenizer(prompts[0], add_special_tokens=False)["input_ids"])
    for i, ids in enumerate(tokens):
        logits = scorer._logits_without_tree(prompt, torch.tensor(ids))
        expected = sum(logits[k, token].item() for k, token in enumerate(ids)) + max(map(len, tokens)) - len(ids)
        assert float(reference_scores[0, i]) == pytest.approx(expected, abs=1e-3)
    with pytest.raises(ConfigError, match=r"llm\.length_normalization=tokens.*llm\.parity=true"):
        make_seq2seq_scorer(folder, parity=True, length_normalization="tokens")


def test_non_finite_loss_ends_run(folders):
    env = Corridor(8)
    agent = make_agent(folders, env, ppo=replace(PPO, max_grad_norm=1e9))
    rollout = collect_rollout(agent, env)
    rollout.reward[0, 0, 0] = torch.nan
    with pytest.raises(Diverged, match=r"nan.*agent\.ppo\.learning_rate"):
        agent.update(rollout, Seeds(0).torch("minibatches"))


def test_rejects_invalid_settings(folders):
    env = Corridor(4)
    with pytest.raises(ConfigError, match=r"env=corridor.*'go'"):
        make_agent(folders, Corridor(4, names=("go", "go")))
    with pytest.raises(ConfigError, match="empty name"):
        make_agent(folders, Corridor(4, names=("go", " ")))
    with pytest.raises(ConfigError, match=r"'text'.*agent\.text_channel=prompt"):
        make_agent(folders, env, text_channel="text")
    with pytest.raises(ConfigError, match=r"kl_coefficient.*agent\.actions=scores"):
        make_agent(folders, env, actions="head", kl_coefficient=0.1)
    with pytest.raises(ConfigError, match=r"tune=heads.*agent\.actions=head,"):
        make_agent(folders, env, tune="heads")
    with pytest.raises(ConfigError, match=r"dropout=0\.1.*agent=llm_ppo"):
        make_agent(folders, env, tune="lora", lora=Lora(dropout=0.1))
    with pytest.raises(ConfigError, match=r"tune=full.*llm\.dtype=float32.*agent\.precision=bfloat16"):
        make_agent(folders, env, scorer=make_causal_scorer(folders["causal"], dtype="bfloat16"))
    with pytest.raises(CheckpointError, match=r"agent\.init_from=nowhere"):
        make_agent(folders, env, init_from="nowhere")
    with pytest.raises(LLMError, match="nowhere"):
        make_agent(folders, env, scorer=make_seq2seq_scorer("./nowhere"))


def test_tokenizer_needs_no_padding_token(folders, tmp_path):
    import json
    import shutil

    folder = tmp_path / "bare"
    shutil.copytree(folders["causal"], folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("pad_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    env = Corridor(4)
    bare = make_agent(folders, env, scorer=make_causal_scorer(folder))
    full_agent = make_agent(folders, env, "causal")
    prompts = sorted({str(t) for t in env.reset(seed=2)["prompt"].ravel()})
    assert bare.policy.network.scorer._tokenizer.pad_token is None
    torch.testing.assert_close(bare.policy.probabilities(prompts), full_agent.policy.probabilities(prompts))
