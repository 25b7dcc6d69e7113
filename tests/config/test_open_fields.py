"""Arguments of other people's classes, and texts to be replaced, are typed like any other field, though no option file
lists their names."""

import pytest

from experiments import compose
from llmrl.config.overrides import opened


@pytest.mark.parametrize(
    ("typed", "field", "value"),
    [
        ("env.kwargs.sutton_barto_reward=true", "env.kwargs", {"sutton_barto_reward": True}),
        ("env.kwargs={a:1,b:[2,3]}", "env.kwargs", {"a": 1, "b": [2, 3]}),
        ("env.kwargs={}", "env.kwargs", {}),
        ("agent.arguments.gamma=0.9", "agent.arguments", {"gamma": 0.9}),
    ],
)
def test_new_keys_may_be_typed(typed, field, value):
    config = compose("env=cartpole", "agent=sb3", opened(typed))
    part, name = field.split(".")
    assert config[part][name] == value


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("env.replace={key: chair, ball: table}", {"key": "chair", "ball": "table"}),
        ("env.replace={Goal of the agent: You have to}", {"Goal of the agent": "You have to"}),
        ("env.replace.key=chair", {"key": "chair"}),
        ("env.replace={}", {}),
    ],
)
def test_any_text_may_be_replaced(typed, value):
    assert compose("env=babyai_text", opened(typed))["env"]["replace"] == value


@pytest.mark.parametrize(
    "typed", ["env.kwarg.a=1", "+env.kwargs.a=1", "~env.kwargs", "llm.model=my.kwargs=2", "--kwargs="]
)
def test_everything_else_stays_as_it_was_typed(typed):
    assert opened(typed) == typed
