"""Types and ranges of options as texts, and the page of the documentation that lists them."""

from pathlib import Path

import pytest
from options import format_page

from llmrl.config.option_docs import format_option_type


@pytest.mark.slow
def test_options_page_is_current():
    """Run python scripts/options.py if this test fails."""
    assert (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8") == format_page()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("seed", "integer >= 0"),
        ("prompts", "string | null"),
        ("design.steps", "integer > 0"),
        ("search.candidates", "integer > 0"),
        ("llm.cache", "off | read | readwrite | only"),
        ("llm.budget.usd", "number >= 0 | null"),
        ("agent.ppo.gamma", "number >= 0 and <= 1"),
        ("design.objective", ""),
        ("design.nothing", ""),
        ("nothing", ""),
    ],
)
def test_type_is_that_of_shipped_classes(key, text):
    assert format_option_type(key, {}) == text


def test_target_of_place_determines_type():
    targets = {"agent": "llmrl.agents.random_agent.RandomAgent"}
    assert format_option_type("agent.ppo", targets) == ""
    assert format_option_type("agent.student", {}) == "object"
