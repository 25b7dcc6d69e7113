"""Overrides of keys that no option file lists: arguments of external classes, and replaced texts."""

import pytest

from experiments import compose
from llmrl.config.overrides import allow_new_key


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ("env.kwargs.sutton_barto_reward=true", "env.kwargs", {"sutton_barto_reward": True}),
        ("env.kwargs={a:1,b:[2,3]}", "env.kwargs", {"a": 1, "b": [2, 3]}),
        ("env.kwargs={}", "env.kwargs", {}),
        ("agent.arguments.gamma=0.9", "agent.arguments", {"gamma": 0.9}),
    ],
)
def test_new_keys_are_allowed(override, field, value):
    config = compose("env=cartpole", "agent=sb3", allow_new_key(override))
    part, name = field.split(".")
    assert config[part][name] == value


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("env.replace={key: chair, ball: table}", {"key": "chair", "ball": "table"}),
        ("env.replace={Goal of the agent: You have to}", {"Goal of the agent": "You have to"}),
        ("env.replace.key=chair", {"key": "chair"}),
        ("env.replace={}", {}),
    ],
)
def test_any_text_may_be_replaced(override, value):
    assert compose("env=babyai_text", allow_new_key(override))["env"]["replace"] == value


@pytest.mark.parametrize(
    "override", ["env.kwarg.a=1", "+env.kwargs.a=1", "~env.kwargs", "llm.model=my.kwargs=2", "--kwargs="]
)
def test_remaining_overrides_are_unchanged(override):
    assert allow_new_key(override) == override
