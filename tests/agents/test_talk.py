"""Players who talk before they act: who hears whom, what is asked, and what a kill leaves of it."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import comparable_metrics, compose, only_run_folder, run
from llmrl.agents.llm_player.agent import LLMPlayer, read_personas
from llmrl.agents.llm_player.talk import Said, Talk, silent
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.records import ChatReply
from llmrl.core.seeding import Seeds
from llmrl.envs.commons import Commons
from llmrl.envs.melting_pot.env_spec import SubstrateSettings
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.llms.client import ChatClient
from llmrl.llms.structured import InvalidReply
from llmrl.rollout.collector import Collector
from models import Echo

SPEC = Commons(Seeds(0), n_envs=2, n_agents=4, observe=["text"], mechanism=False).spec


def village(substrate="harvest"):
    settings = SubstrateSettings(substrate, 1, n_agents=4, horizon=6, observe=["text"], map="own")
    return NativeEnv(settings, Seeds(0), tiles="plain")


class Fishers(Echo):
    """Say and do what a function makes of the player's name and the newest message."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def complete(self, requests):
        replies = []
        for request in requests:
            who = request.messages[0]["content"].rpartition("You are ")[2].split(".")[0]
            told = [m["content"] for m in request.messages if m["role"] == "user" and m["content"].startswith("{")]
            now = json.loads(told[-1])
            self.asked.append((who, now, request))
            replies.append(ChatReply(json.dumps(self.answer(who, now)), 10, 5))
        return replies


def say_and_take(who, now):
    if now.get("talk"):
        return {"message": f"I am {who}."}
    return {"reflection": "x", "action": "take_5"}


def played(answer, steps=3, env=None, **options):
    env = env or Commons(Seeds(0), n_envs=1, n_agents=4, observe=["text"], mechanism=False)
    fishers = Fishers(answer)
    agent = LLMPlayer(env.spec, ChatClient(fishers), None, talk_every=options.pop("talk_every", 1), **options)
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(0)
    collector.collect(steps, torch.Generator(), learn=False)
    return fishers.asked, agent


class TestWhoHears:
    @given(st.lists(st.sampled_from(["", "a", None]), min_size=4, max_size=4))
    def test_everybody_hears_what_the_others_said(self, said):
        round_ = [None if each is None else Said(each and f"{each}{i}") for i, each in enumerate(said)]
        heard = Talk(SPEC, 1, "all", 100).heard(round_, ["{}"] * 4)
        for i, entries in enumerate(heard):
            others = [j for j in range(4) if j != i and round_[j] is not None and round_[j].text]
            expected = [{"from": f"player {j + 1}", "message": round_[j].text} for j in others]
            assert entries == ([] if round_[i] is None else expected)

    def test_one_hears_what_is_said_to_it(self):
        talk = Talk(SPEC, 1, "one", 100)
        assert talk.read('{"to": "Player 2", "message": "hello"}', 0, False) == Said("hello", "player 2")
        heard = talk.heard([Said("hello", "player 2"), Said(""), Said("x", "player 1"), None], ["{}"] * 4)
        assert [len(entries) for entries in heard] == [1, 1, 0, 0]
        for wrong in ("player 1", "player 7", ""):
            with pytest.raises(InvalidReply, match="one other player: player 2, player 3"):
                talk.read(json.dumps({"to": wrong, "message": "hello"}), 0, False)
        assert talk.schema()["properties"]["to"]["enum"] == ["player 1", "player 2", "player 3", "player 4"]

    def test_neighbours_hear_whom_sees_them(self):
        env = village()
        talk = Talk(env.spec, 1, "neighbours", 100)
        sees = ['{"players": [{"player": 3}]}', '{"players": []}', "", '{"players": [{"player": 1}, {"player": 2}]}']
        heard = talk.heard([Said(str(i)) for i in range(4)], sees)
        assert [[entry["message"] for entry in entries] for entries in heard] == [["3"], ["3"], ["0"], []]
        with pytest.raises(ConfigError, match="talk_to=neighbours"):
            Talk(SPEC, 1, "neighbours", 100)

    @pytest.mark.parametrize("text", ['{"message": ""}', '```json\n{"message": ""}\n```', '{"to": "x", "message":""}'])
    def test_silence(self, text):
        assert silent(text) and Talk(SPEC, 1, "all", 100).read(text, 0, False) == Said("")

    @pytest.mark.parametrize(
        "text",
        [
            '{"message": "we should each take 5"}',
            "<think>hm</think>we should each take 5",
            "message: we should each take 5",
        ],
    )
    def test_messages_in_the_styles_of_models(self, text):
        assert Talk(SPEC, 1, "all", 100).read(text, 0, False).text == "we should each take 5"
        assert len(Talk(SPEC, 1, "all", 4).read('{"message": "a long story"}', 0, False).text) == 4

    @pytest.mark.parametrize("to", ['"player 2"', '"Player_2"', "2", '["player 2"]'])
    def test_spellings_of_an_addressee(self, to):
        assert Talk(SPEC, 1, "one", 200).read(f'{{"to": {to}, "message": "hello"}}', 0, False) == Said(
            "hello", "player 2"
        )

    @pytest.mark.parametrize("to", ["true", '"player"', "9", '["player 2", "player 3"]'])
    def test_what_names_no_single_player(self, to):
        with pytest.raises(InvalidReply):
            Talk(SPEC, 1, "one", 200).read(f'{{"to": {to}, "message": "hello"}}', 0, False)

    def test_one_player_alone_has_nobody_to_talk_to(self):
        with pytest.raises(ConfigError, match="nobody to talk to"):
            Talk(SPEC.part([0], True), 1, "all", 100)


class TestRounds:
    def test_what_was_said_stands_in_the_question_that_follows(self):
        asked, agent = played(say_and_take)
        talks = [(who, now) for who, now, _ in asked if now.get("talk")]
        acts = [(who, now) for who, now, _ in asked if not now.get("talk")]
        assert len(talks) == len(acts) == 12
        for who, now in acts:
            assert now["you_said"] == f"I am {who}."
            names = [entry["from"] for entry in now["heard"]]
            assert names == [f"player {i}" for i in range(1, 5) if f"player {i}" != who]
            assert all(entry["message"] == f"I am {entry['from']}." for entry in now["heard"])
        assert all("heard" not in now for _, now in talks)
        assert agent.metrics()["player/messages"] == 12 and agent.metrics()["player/decisions"] == 12

    def test_what_was_heard_is_remembered(self):
        asked, _ = played(say_and_take, steps=2)
        request = asked[-1][2]
        earlier = json.loads(request.messages[1]["content"])
        assert earlier["heard"] and "talk" not in earlier

    def test_rounds_come_every_so_often_and_are_asked_for_by_schema(self):
        asked, _ = played(say_and_take, steps=5, talk_every=2)
        steps = sorted({now["step"] for _, now, _ in asked if now.get("talk")})
        assert steps == [0, 2, 4]
        [schema] = {json.dumps(r.schema) for _, now, r in asked if now.get("talk")}
        assert list(json.loads(schema)["properties"]) == ["message"]

    def test_who_cannot_be_understood_is_silent(self):
        asked, agent = played(lambda who, now: {"x": 1} if now.get("talk") else {"reflection": "x", "action": "take_5"})
        assert agent.metrics()["player/messages"] == 0
        assert all("you_said" not in now and "heard" not in now for _, now, _ in asked if not now.get("talk"))
        assert agent.metrics()["player/invalid_rate"] > 0.5 and agent.metrics()["player/fallback_rate"] == 0

    def test_players_in_view_hear_each_other_in_a_village(self):
        def answer(who, now):
            return {"message": who} if now.get("talk") else {"reflection": "x", "action": "turn_left"}

        asked, _ = played(answer, env=village(), talk_to="neighbours")
        sees = {}
        for who, now, _ in asked:
            seen = {f"player {each['player']}" for each in now["observation"]["players"]}
            if now.get("talk"):
                sees.setdefault(now["step"], {})[who] = seen
            else:
                speakers = {speaker for speaker, seen in sees[now["step"]].items() if who in seen}
                assert {entry["from"] for entry in now.get("heard", [])} == speakers

    def test_silent_players_are_told_nothing_of_talk(self):
        env = Commons(Seeds(0), n_envs=1, observe=["text"], mechanism=False)
        system = LLMPlayer(env.spec, ChatClient(Echo()), None).policy.system[0].text
        assert "Talking" not in system and "heard" not in system


class TestPersonas:
    def test_each_player_is_somebody(self, tmp_path):
        file = tmp_path / "people.yaml"
        file.write_text("- You think of\n  your children.\n- You want it all.\n")
        env = Commons(Seeds(0), n_envs=1, n_agents=3, observe=["text"], mechanism=False)
        policy = LLMPlayer(env.spec, ChatClient(Echo()), None, personas=str(file)).policy
        ends = [prompt.text.rstrip().splitlines()[-1] for prompt in policy.system]
        assert ends == [
            "You are player 1. You think of your children.",
            "You are player 2. You want it all.",
            "You are player 3. You think of your children.",
        ]

    @pytest.mark.parametrize("content", ["", "a: 1", "- 1", "- ' '", "- [", "[]"])
    def test_what_is_no_list_of_people(self, tmp_path, content):
        file = tmp_path / "people.yaml"
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"agent\.personas"):
            read_personas(file)

    def test_a_changed_file_is_another_run(self, tmp_path):
        from llmrl.config.input_digests import with_digests

        file = tmp_path / "people.yaml"
        config = compose("experiment=zero_shot/fishery", f"agent.personas={file}")
        found = []
        for text in ("- You fish.", "- You do not fish."):
            file.write_text(text)
            found.append(with_digests(config)["personas_digest"])
        assert found[0] != found[1]


def test_a_run_in_which_players_talk_ends_for_its_budget_and_goes_on(tmp_path):
    """As if it had not ended, whatever kind of question it ended at."""
    options = ("experiment=zero_shot/fishery", "treatment=universalization", "agent.talk_every=1", "llm=scripted")
    options = (*options, "env.n_envs=2", "env.horizon=3", "play.episodes=2", "llm.cache=off")
    run(*options, f"output_root={tmp_path / 'whole'}")
    whole = only_run_folder(tmp_path / "whole")
    with pytest.raises(BudgetExhausted):
        run(*options, "llm.budget.calls=17", f"output_root={tmp_path / 'parts'}")
    run(*options, "llm.budget.calls=1000", f"output_root={tmp_path / 'parts'}")

    def unpaid(folder):
        return [{k: v for k, v in row.items() if not k.startswith("spent/")} for row in comparable_metrics(folder)]

    parts = only_run_folder(tmp_path / "parts")
    assert unpaid(parts) == unpaid(whole)
    lines = [json.loads(line) for path in whole.glob("episodes/*/*.jsonl") for line in path.read_text().splitlines()]
    assert any(line.get("said") for line in lines) and not any("talk_took" in line for line in lines)
    assert np.isfinite(unpaid(whole)[-1]["player/messages"])
