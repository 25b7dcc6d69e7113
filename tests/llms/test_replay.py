import json

import pytest

from experiments import find_run_folder, load_comparable_metrics, run
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.seeding import Seeds
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog
from llmrl.llms.client import ChatClient
from llmrl.llms.replay import ReplayChat
from llmrl.llms.scripted import ScriptedChat
from models import EchoProvider, make_request

RUN = (
    "env=escape_room",
    "env.n_envs=2",
    "principal=llm",
    "design.evaluations=1",
    "design.steps=6",
    "design.adapt_rounds=1",
    "design.validate_episodes=2",
)


def record_calls(folder, *texts, sample_seed=0):
    ChatClient(EchoProvider(), call_log=CallLog(folder / CALL_LOG_NAME), sample_seed=sample_seed).chat(
        [make_request(text) for text in texts]
    )


def replay(path, seed=0):
    client = ChatClient(ReplayChat(str(path), Seeds(seed)), sample_seed=seed)
    client.check()
    return client


@pytest.mark.slow
def test_replay_reproduces_experiment(tmp_path):
    """Includes seeds, repairs and fallbacks; only costs differ."""
    malformed = ("llm.malformed=0.6", "llm.max_invalid=null")
    for seed in (0, 1):
        run(*RUN, *malformed, f"seed={seed}", f"output_root={tmp_path}/first")
    [folder] = (tmp_path / "first" / "escape_room").iterdir()
    for seed, calls in ((0, folder / "s0"), (1, folder), (1, folder / "s1" / CALL_LOG_NAME)):
        root = tmp_path / f"again_{seed}_{len(calls.parts)}"
        run(*RUN, "llm=replay", "llm.max_invalid=null", f"llm.calls='{calls}'", f"seed={seed}", f"output_root={root}")
        replayed_folder = find_run_folder(root)
        comparable = [
            [
                {k: v for k, v in row.items() if not k.startswith("usage/")}
                for row in load_comparable_metrics(run_folder)
            ]
            for run_folder in (replayed_folder, folder / f"s{seed}")
        ]
        assert comparable[0] == comparable[1]
        assert load_comparable_metrics(replayed_folder, "proposal")[-1]["llm/invalid_replies"] > 0
        assert load_comparable_metrics(replayed_folder, "proposal")[-1]["usage/llm_calls"] == 0
        assert json.loads((replayed_folder / "status.json").read_text())["llm"] == f"replay of {ScriptedChat.label}"


def test_replay_keeps_costs(tmp_path):
    record_calls(tmp_path, "a", "b", "a")
    client = replay(tmp_path)
    replies = client.chat([make_request("a"), make_request("a"), make_request("b")])
    assert [reply.text for reply in replies] == ["a", "a", "b"]
    assert replies[0].cost == 7e-6 and replies[0].prompt_tokens == 3 and replies[0].attempts == 0
    assert client.label == "replay of echo" and client.metrics()["usage/llm_calls"] == 0
    with pytest.raises(LLMError, match=rf"{CALL_LOG_NAME} .*purpose"):
        client.chat([make_request("a")])


def test_different_seed_warns(tmp_path):
    record_calls(tmp_path, "a", sample_seed=3)
    with pytest.raises(LLMError, match=r"seed=3.*seed=4"):
        replay(tmp_path, seed=4)


def test_shared_replies_serve_any_seed(tmp_path):
    record_calls(tmp_path, "a", sample_seed=None)
    assert replay(tmp_path, seed=4).chat([make_request("a")])[0].text == "a"


def test_empty_replay(tmp_path):
    with pytest.raises(ConfigError, match=r"llm_calls\.jsonl"):
        replay(tmp_path / "nowhere")
    CallLog(tmp_path / CALL_LOG_NAME)
    with pytest.raises(ConfigError, match="no reply"):
        replay(tmp_path)


def test_replay_uses_original_context_window(tmp_path):
    record_calls(tmp_path, "a")
    (tmp_path / "config.yaml").write_text("llm: {context_window: 50, max_tokens: 20}")
    assert not replay(tmp_path).fits([{"role": "user", "content": "a " * 40}])
    (tmp_path / "config.yaml").unlink()
    assert replay(tmp_path).fits([{"role": "user", "content": "a " * 40}])
