import json

import pytest

from experiments import comparable_metrics, only_run_folder, run
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.seeding import Seeds
from llmrl.llms.call_log import FILE_NAME, CallLog
from llmrl.llms.client import ChatClient
from llmrl.llms.replay import ReplayChat
from models import Echo, ask

RUN = ("env=escape_room", "env.n_envs=2", "principal=llm", "design.steps=6", "design.adapt_rounds=1")


def recorded(folder, *texts, stream=0):
    ChatClient(Echo(), ledger=CallLog(folder / FILE_NAME), stream=stream).chat([ask(text) for text in texts])


def replay(path, seed=0):
    client = ChatClient(ReplayChat(str(path), Seeds(seed)), stream=seed)
    client.check()
    return client


@pytest.mark.slow
def test_an_experiment_again(tmp_path):
    """Seeds, repairs and fallbacks included; only what was paid differs."""
    spoilt = ("llm.malformed=0.6", "llm.max_invalid=null")
    for seed in (0, 1):
        run(*RUN, *spoilt, f"seed={seed}", f"output_root={tmp_path}/first")
    [folder] = (tmp_path / "first" / "escape_room").iterdir()
    for seed, calls in ((0, folder / "s0"), (1, folder), (1, folder / "s1" / FILE_NAME)):
        root = tmp_path / f"again_{seed}_{len(calls.parts)}"
        run(*RUN, "llm=replay", "llm.max_invalid=null", f"llm.calls='{calls}'", f"seed={seed}", f"output_root={root}")
        again = only_run_folder(root)
        without_spent = [
            [{k: v for k, v in row.items() if not k.startswith("spent/")} for row in comparable_metrics(which)]
            for which in (again, folder / f"s{seed}")
        ]
        assert without_spent[0] == without_spent[1]
        assert comparable_metrics(again, "proposal")[-1]["llm/invalid_replies"] > 0
        assert comparable_metrics(again, "proposal")[-1]["spent/llm_calls"] == 0
        assert json.loads((again / "status.json").read_text())["llm"] == "replay of scripted rule (not a language model)"


def test_replies_tokens_and_costs_are_the_recorded_ones(tmp_path):
    recorded(tmp_path, "a", "b", "a")
    client = replay(tmp_path)
    replies = client.chat([ask("a"), ask("a"), ask("b")])
    assert [reply.text for reply in replies] == ["a", "a", "b"]
    assert replies[0].cost == 7e-6 and replies[0].prompt_tokens == 3 and replies[0].attempts == 0
    assert client.label == "replay of echo" and client.metrics()["spent/llm_calls"] == 0
    with pytest.raises(LLMError, match="holds no reply to this request"):
        client.chat([ask("a")])


def test_another_seed_is_told_so(tmp_path):
    recorded(tmp_path, "a", stream=3)
    with pytest.raises(LLMError, match="recorded with seed=3 and this run has seed=4"):
        replay(tmp_path, seed=4)


def test_shared_replies_serve_any_seed(tmp_path):
    recorded(tmp_path, "a", stream=None)
    assert replay(tmp_path, seed=4).chat([ask("a")])[0].text == "a"


def test_nothing_to_replay(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no llm_calls\.jsonl"):
        replay(tmp_path / "nowhere")
    CallLog(tmp_path / FILE_NAME)
    with pytest.raises(ConfigError, match="holds no reply"):
        replay(tmp_path)


def test_the_recorded_context_window_shapes_the_questions(tmp_path):
    recorded(tmp_path, "a")
    (tmp_path / "config.yaml").write_text("llm: {context_window: 50, max_tokens: 20}")
    assert not replay(tmp_path).fits([{"role": "user", "content": "a " * 40}])
    (tmp_path / "config.yaml").unlink()
    assert replay(tmp_path).fits([{"role": "user", "content": "a " * 40}])
