"""`llmrl-llm trial`: a model in each family of environments, with a server that imitates many models."""

import json

import pytest

from fake_openai_server import FakeOpenAIServer
from llmrl.cli.llm import main, run_trial
from llmrl.core.errors import ConfigError
from llmrl.experiment.model_trial import NUMBERS_NAME
from styles import Styled

PRICES = ("llm.input_price=1", "llm.output_price=4")
SMALL = ("design.adapt_rounds=1", "design.validate_episodes=8", "design.evaluations=1", "search.episodes=2")
"""Cheaper games; the prompts are those of the command."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Run a trial against a server with the key `secret`.

    Return its folder, the server's address, and the number of requests.
    """
    folder, model = tmp_path_factory.mktemp("trial"), Styled(bad=0.05, seed=1)
    with (
        pytest.MonkeyPatch.context() as patch,
        FakeOpenAIServer(model, key="sk-secret-of-the-trial-0123456789", usage=model.usage, model="styled") as server,
    ):
        patch.chdir(folder)
        patch.setenv("TRIAL_KEY", "sk-secret-of-the-trial-0123456789")
        options = (
            "llm=openai_compatible",
            f"llm.base_url={server.url}",
            "llm.model=styled",
            "llm.api_key_env=TRIAL_KEY",
            *SMALL,
        )
        main(["trial", *options, *PRICES, "budget=5", "--out", "styled"])
        n_requests = len(server.requests)
        main(["trial", *options, *PRICES, "budget=5", "--out", "styled"])
        assert len(server.requests) == n_requests, "what is there already is not asked again"
        yield folder, server.url, n_requests


@pytest.mark.slow
def test_model_families_are_parsed(page):
    folder, _, n_requests = page
    numbers = json.loads((folder / "styled" / NUMBERS_NAME).read_text())
    assert list(numbers) == ["principal", "search", "teacher", "player"]
    assert sum(family_numbers["replies"] for family_numbers in numbers.values()) == n_requests
    for family_numbers in numbers.values():
        assert not family_numbers["ended"]
        assert family_numbers["cost"] == pytest.approx(
            (family_numbers["prompt_tokens"] + 4 * family_numbers["completion_tokens"]) / 1e6
        )
    sums = {
        name: sum(family_numbers[name] or 0 for family_numbers in numbers.values())
        for name in ("invalid", "judged", "fallbacks")
    }
    assert sums["invalid"] <= 0.15 * sums["judged"] and sums["fallbacks"] <= 1
    assert numbers["principal"]["cached_tokens"] > 0.5 * numbers["principal"]["prompt_tokens"]
    text = (folder / "styled" / "trial.md").read_text()
    assert "| invalid | " in text and "$" in text


@pytest.mark.slow
def test_budget_limits_trial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Styled(bad=0.0)
    with FakeOpenAIServer(model, usage=model.usage, model="styled") as server:
        options = ["llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=styled", *PRICES]
        with pytest.raises(ConfigError, match="cost"):
            run_trial(options, tmp_path / "free")
        assert not server.requests
        page, _, _ = run_trial([*options, "budget=0.04", "families=principal"], tmp_path / "little")
        assert 0 < len(server.requests) < 12 and "the budget is used up" in page.read_text()
        assert json.loads((page.parent / NUMBERS_NAME).read_text())["principal"]["cost"] <= 0.04


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llm=scripted", "families=poet"], "principal, search, teacher, player"),
        (["llm=scripted", "budget=much"], "a number of US dollars"),
        (["llm=scripted", "budget=-1"], "0 or more"),
        (["llm=none"], "needs a language model"),
    ],
)
def test_invalid_trials(words, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run_trial(words, tmp_path)
