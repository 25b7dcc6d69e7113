"""Environments for TRL's GRPO trainer."""

import json

import pytest

import llmrl
from llmrl.core.errors import ConfigError, Incompatible
from tiny_models import make_tiny_tokenizer


def test_rewards_equal_environment():
    environment, env = llmrl.trl_environment("taxi")(), llmrl.make_env("taxi", n_envs=1)
    first = environment.reset(seed=3, prompt="is ignored")
    observation = env.reset(seed=3)
    assert first.endswith(json.dumps({"observation": json.loads(observation["text"][0, 0])}))
    assert "south: drive one row down" in first
    rewards = []
    for name, index in (("south", 0), ("north", 1), ("south", 0)):
        content, step = json.loads(environment.act(name)), env.step([[index]])
        rewards.append(float(step.reward[0, 0]))
        assert content == {"observation": json.loads(step.observation["text"][0, 0]), "reward": rewards[-1]}
    assert environment.get_reward() == sum(rewards)


def test_unknown_action_returns_error():
    environment = llmrl.trl_environment("taxi")()
    environment.reset(seed=3)
    assert "error" in json.loads(environment.act("fly"))
    assert environment.get_reward() == 0.0


def test_episode_ends():
    environment = llmrl.trl_environment("blackjack")()
    assert "error" in json.loads(environment.act("stick"))
    environment.reset(seed=0)
    assert json.loads(environment.act("stick"))["episode_is_over"] is True
    assert "error" in json.loads(environment.act("stick"))
    assert environment.get_reward() in (-1.0, 0.0, 1.0, 1.5)


def test_instances_have_different_streams():
    kind = llmrl.trl_environment("blackjack", seed=5)
    starts = {kind().reset() for _ in range(6)}
    assert len(starts) > 1
    again = llmrl.trl_environment("blackjack", seed=5)
    assert {again().reset() for _ in range(6)} == starts


@pytest.mark.parametrize(
    ("env", "options", "error"),
    [
        ("fishery", {}, Incompatible),
        ("goto_local", {"observe": ["vector"]}, ConfigError),
        ("taxi", {"horizons": 3}, ConfigError),
        ("taxi", {"text": None}, Incompatible),
    ],
)
def test_unsuitable_environments_are_refused(env, options, error):
    with pytest.raises(error):
        llmrl.trl_environment(env, **options)


def _make_tool_calling_model(folder, kind, reply):
    """Write a tiny model that is trained to answer every first observation of `kind` with `reply`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = make_tiny_tokenizer(qwen3_chat_template)
    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=8192, **shape, **ids))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    target, environment = tokenizer.encode(reply, add_special_tokens=False), kind()
    for seed in range(160):
        messages = [{"role": "user", "content": environment.reset(seed=seed % 4)}]
        prompt = tokenizer.apply_chat_template(
            messages, tools=[environment.act], add_generation_prompt=True, enable_thinking=False, return_dict=False
        )
        labels = torch.tensor([[-100] * len(prompt) + target])
        model(torch.tensor([prompt + target]), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.long
def test_trainer_plays_episodes(tmp_path):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    kind, played = llmrl.trl_environment("blackjack"), []

    class Recorded(kind):
        def get_reward(self):
            played.append((self._is_over, super().get_reward()))
            return played[-1][1]

    reply = '<tool_call>\n{"name": "act", "arguments": {"action": "stick"}}\n</tool_call><|im_end|>'
    _make_tool_calling_model(tmp_path / "model", kind, reply)
    prompt = [{"role": "user", "content": ""}]
    settings = GRPOConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=160,
        max_tool_calling_iterations=2,
        temperature=0.01,
        chat_template_kwargs={"enable_thinking": False},
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=str(tmp_path / "model"),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [prompt] * 4, "seed": [0, 1, 2, 3]}),
        environment_factory=Recorded,
    )
    trainer.train()
    assert len(played) == 4 and any(is_over for is_over, _ in played)
    [rewards] = [entry["rewards/Recorded/mean"] for entry in trainer.state.log_history if "reward" in entry]
    assert rewards == pytest.approx(sum(reward for _, reward in played) / 4)
