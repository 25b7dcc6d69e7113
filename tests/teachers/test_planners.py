import json
import logging
import os
from pathlib import Path

import pytest

from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.records import ChatReply
from llmrl.core.seeding import Seeds
from llmrl.llms.cache import Cache
from llmrl.llms.client import ChatClient
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.scripted import ScriptedChat, UnreadPromptError
from llmrl.teachers import scripted_planner
from llmrl.teachers.domain import ANNOUNCEMENT_PREFIX
from llmrl.teachers.offline_planner import OfflinePlanner
from llmrl.teachers.planners import ErroneousPlanner, OraclePlanner, normalize_weights
from llmrl.teachers.plans import PlanStep, parse_plan, parse_reply
from llmrl.teachers.teacher_factory import find_domain
from models import EchoProvider, connect_client, make_scripted_client
from shipped import build_llm_planner

GOLDEN = Path(__file__).parent / "golden"
EMPTY_STATE = "Agent sees <nothing>, holds <nothing>."
KEY = "Agent sees <key>, holds <nothing>."
DOOR = "Agent sees <door>, holds <key>."
FETCH = (PlanStep("go to", "key"), PlanStep("pick up", "key"))
EXPLORE = (PlanStep("explore"),)

STATES = {
    "simple_doorkey": EMPTY_STATE,
    "lava_doorkey": DOOR,
    "colored_doorkey": "Agent sees <red key>, <blue door>, holds <blue key>.",
    "two_door": "Agent sees <key>, <door1>, <door2>, holds <nothing>.",
    "unlock_pickup": "Agent sees <open door>, <box>, holds <key>.",
}


def planner(llm=None, task="simple_doorkey", **options):
    return build_llm_planner(find_domain(task), llm or make_scripted_client(), **options)


class Answers(EchoProvider):
    """Replies from a list, in turn, the last for ever."""

    def __init__(self, *texts):
        super().__init__(remote=False)
        self.texts, self.requests = list(texts), []

    def complete(self, requests):
        self.requests += requests
        return [ChatReply(self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]) for _ in requests]


def plan_json(*steps):
    return json.dumps({"reasoning": "", "plan": [{"skill": s, "object": o} for s, o in steps]})


def check_snapshot(name, text):
    """Compare with a golden file. LLMRL_UPDATE_GOLDEN=1 rewrites it after a deliberate change; then read the diff."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("LLMRL_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("task", STATES)
def test_prompt_snapshots(task):
    check_snapshot(task, planner(task=task).render_question(STATES[task]).text)


def test_repair_prompt_snapshot():
    check_snapshot("repair", planner()._render_repair("there is no skill 'fly'; there are explore, go to").text)


@pytest.mark.parametrize("task", STATES)
def test_prompt_example_is_valid_plan(task):
    domain = find_domain(task)
    lines = planner(task=task).render_question(STATES[task]).text.split("## Example")[1].splitlines()
    sentence = next(line for line in lines if line.startswith("State: "))
    answer = next(line for line in lines if line.startswith("{"))
    assert len(parse_reply(answer, domain.skills, domain.objects(sentence))) == 2


def test_episode_description():
    """Its length, as it is configured; nothing where nothing is known."""
    assert "after 90 actions" in planner(horizon=90).render_question(KEY).text
    assert "An episode ends" not in planner().render_question(KEY).text


def test_custom_prompt():
    assert planner(prompt="lava_doorkey").render_question(KEY).name == "teacher/lava_doorkey"
    with pytest.raises(ConfigError, match=r"nowhere.j2.*simple_spread_rule"):
        planner(prompt="nowhere")


def test_state_is_prompt_suffix():
    """So that providers keep the rest; the schema names what there may be in any of them."""
    model = Answers(plan_json(("explore", "")))
    planner(ChatClient(model), samples=1).plans([KEY, DOOR])
    first, second = (request.messages[-1]["content"] for request in model.requests)
    head, _, _ = first.partition("State: Agent sees <key>")
    assert second.startswith(f"{head}State: Agent sees <door>") and len(head) > 0.9 * len(first)
    assert model.requests[0].schema == model.requests[1].schema
    assert model.requests[0].schema["$defs"]["_Step"]["properties"]["object"]["enum"] == ["", "key", "door"]


def test_user_prompts_have_precedence(tmp_path):
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "simple_doorkey.j2").write_text(
        '{% extends "ours/simple_doorkey.j2" %}{% block world %}My own world.{% endblock %}'
    )
    text = planner(prompt_folder=tmp_path).render_question(KEY).text
    assert "My own world." in text and f"State: {KEY}" in text


class TestAsking:
    def test_sample_shares_are_probabilities(self):
        fetch, explore = plan_json(("go to", "key"), ("pick up", "key")), plan_json(("explore", ""))
        third_plan = "Action: {go to <key>, pick up <key>}"
        planner_ = planner(ChatClient(Answers(fetch, explore, third_plan, fetch)), samples=4)
        assert planner_.plans([KEY]) == [((FETCH, 0.75), (EXPLORE, 0.25))]

    def test_states_are_queried_in_single_batch(self):
        model = Answers(plan_json(("explore", "")))
        planner_ = planner(ChatClient(model), samples=3)
        assert planner_.plans([KEY, EMPTY_STATE, KEY]) == [((EXPLORE, 1.0),)] * 3
        assert planner_.plans([EMPTY_STATE]) == [((EXPLORE, 1.0),)]
        assert len(model.requests) == 6
        # Independent answers to one question.
        assert [request.repeat for request in model.requests] == [0, 1, 2] * 2
        assert planner_.metrics()["teacher/requested_states"] == 2

    def test_objects_belong_to_state(self):
        """Only one of two states that are queried together has a door."""
        go = plan_json(("go to", "door"))
        planner_ = planner(ChatClient(Answers(go)), samples=1, repair_turns=0)
        assert planner_.plans([KEY, DOOR]) == [((EXPLORE, 1.0),), (((PlanStep("go to", "door"),), 1.0),)]
        assert planner_.metrics()["teacher/fallbacks"] == 1

    def test_impossible_steps_are_skipped(self):
        """Also the first; what is left is the plan."""
        later_steps = plan_json(
            ("open", "door"), ("go to", "key"), ("pick up", "key"), ("go to", "door"), ("open", "door")
        )
        assert planner(ChatClient(Answers(later_steps)), samples=1).plans([KEY]) == [((FETCH, 1.0),)]

    def test_repair_locates_json_error(self):
        model = Answers('{"reasoning": "x", "plan": [{"skill": "fly" "object": }]', plan_json(("explore", "")))
        planner(ChatClient(model), samples=1).plans([KEY])
        message = model.requests[1].messages[-1]["content"]
        assert "'fly'" in message and "line 1, column 45," in message

    def test_repair_explains_error(self):
        model = Answers(plan_json(("fly", "")), plan_json(("explore", "")))
        assert planner(ChatClient(model), samples=1).plans([KEY]) == [((EXPLORE, 1.0),)]
        assert "'fly'" in model.requests[1].messages[-1]["content"]

    def test_invalid_samples_are_excluded(self):
        replies = [plan_json(("go to", "key"), ("pick up", "key")), "no", plan_json(("explore", "")), "", "{}"]
        planner_ = planner(ChatClient(Answers(*replies)), samples=5, repair_turns=0)
        assert planner_.plans([KEY]) == [((FETCH, 0.5), (EXPLORE, 0.5))]
        assert planner_.metrics()["teacher/fallbacks"] == 3 == planner_.metrics()["llm/invalid_replies"]

    def test_log_marks_valid_replies(self):
        model = Answers(plan_json(("go to", "door")))
        planner(ChatClient(model), samples=1, repair_turns=0).plans([KEY, DOOR])
        first, second = (request.parse for request in model.requests)
        reply = ChatReply(plan_json(("go to", "door")))
        with pytest.raises(InvalidReply, match="'door'"):
            first(reply)
        assert second(reply) == (PlanStep("go to", "door"),)


@pytest.mark.parametrize("fault", ["malformed", "empty", "truncated", "refusal"])
def test_permanently_invalid_model(fault, caplog):
    with caplog.at_level(logging.WARNING):
        planner_ = planner(make_scripted_client(**{fault: 1.0}))
        assert planner_.plans([KEY]) == [((EXPLORE, 1.0),)]
    assert planner_.metrics()["teacher/fallbacks"] == 10
    assert planner_.metrics()["llm/invalid_replies"] == 20
    assert "'Agent sees <key>" in caplog.text
    # That is nothing the model said, so it is not kept, and the state is asked for again, but ever more rarely.
    assert planner_.plans_by_sentence == {} and planner_.metrics()["teacher/unknown"] == 1
    rounds = []
    for _ in range(7):
        planner_.plans([KEY])
        rounds.append(planner_.metrics()["teacher/requested_states"])
        if len(rounds) == 4:  # as a resumed run
            state, planner_ = planner_.state_dict(), planner(make_scripted_client(**{fault: 1.0}))
            planner_.load_state_dict(state)
    assert rounds == [2, 2, 3, 3, 3, 3, 4]


def test_frequently_invalid_model():
    planner_ = planner(make_scripted_client(malformed=0.2, empty=0.1, truncated=0.1, refusal=0.1), samples=40)
    assert planner_.plans([KEY]) == [((FETCH, 1.0),)]
    assert planner_.metrics()["llm/repairs"] > 5


class TestFailures:
    REPLY = staticmethod(lambda messages: plan_json(("explore", "")))

    def test_model_failure_ends_run(self):
        with FakeOpenAIServer(self.REPLY) as server:
            planner_ = planner(connect_client(server), samples=2)
            server.faults += ["500"] * 2
            with pytest.raises(LLMError):
                planner_.plans([KEY])
            assert planner_.plans_by_sentence == {}
            assert planner_.plans([KEY]) == [((EXPLORE, 1.0),)]

    def test_fallback_is_temporary(self):
        with FakeOpenAIServer(lambda messages: plan_json(("go to", "key"))) as server:
            planner_ = planner(connect_client(server, failures="fall_back"), samples=2)
            server.faults += ["500"] * 2
            assert planner_.plans([KEY, KEY]) == [((EXPLORE, 1.0),)] * 2
            assert planner_.metrics()["teacher/fallbacks"] == 2 and planner_.plans_by_sentence == {}
            assert planner_.plans([KEY]) == [(((PlanStep("go to", "key"),), 1.0),)]
            assert planner_.metrics()["teacher/requested_states"] == 2

    def test_partial_samples_suffice(self):
        with FakeOpenAIServer(self.REPLY) as server:
            server.faults += ["500"]
            planner_ = planner(connect_client(server, failures="fall_back"), samples=3)
            assert planner_.plans([EMPTY_STATE]) == [((EXPLORE, 1.0),)]
            assert planner_.metrics()["teacher/fallbacks"] == 1 and EMPTY_STATE in planner_.plans_by_sentence

    def test_transient_failures_retry(self):
        kinds = ("429", "500", "503", "reset", "truncated-json", "malformed", "no_choices")
        with FakeOpenAIServer(self.REPLY, fault_rate=0.3, fault_kinds=kinds, seed=3) as server:
            planner_ = planner(connect_client(server, retries=8), samples=10)
            assert planner_.plans([KEY, EMPTY_STATE, DOOR]) == [((EXPLORE, 1.0),)] * 3
            assert planner_.metrics()["teacher/fallbacks"] == 0
            assert any(exchange.fault for exchange in server.exchanges)

    def test_odd_answers_are_no_plans(self):
        with FakeOpenAIServer(
            self.REPLY, fault_rate=1.0, fault_kinds=("null_content", "wrong_schema", "echo")
        ) as server:
            planner_ = planner(connect_client(server), samples=6)
            assert planner_.plans([KEY]) == [((EXPLORE, 1.0),)]
            assert planner_.metrics()["teacher/fallbacks"] == 6 and planner_.plans_by_sentence == {}


def test_replies_are_not_charged_twice(tmp_path):
    model = Answers(plan_json(("explore", "")))
    for _ in range(2):
        planner(ChatClient(model, cache=Cache(tmp_path, "readwrite"))).plans([KEY, EMPTY_STATE])
    assert len(model.requests) == 20


def test_state_round_trip(tmp_path):
    first = planner()
    initial = first.plans([KEY, DOOR, EMPTY_STATE])
    silent = Answers("must not be asked")
    second = planner(ChatClient(silent))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.plans([KEY, DOOR, EMPTY_STATE]) == initial and silent.requests == []
    assert second.metrics() == first.metrics()


def test_run_table_can_be_replayed(tmp_path):
    planner_ = planner(task="colored_doorkey", folder=tmp_path)
    sentences = ["Agent sees <red key>, <blue door>, holds <blue key>.", "Agent sees <red key>, holds <nothing>."]
    plans = planner_.plans(sentences)
    path = tmp_path / "plans.json"
    assert list(json.loads(path.read_text())["plans"]) == sorted(sentences)
    assert ScriptedChat.label in path.read_text()
    restored = OfflinePlanner(find_domain("colored_doorkey"), str(path), missing_state="error")
    assert restored.plans(sentences) == plans
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plans.json"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{% extends "_one_room.j2" %}', r"teacher/simple_doorkey \(.*simple_doorkey.j2\): Required block 'room'"),
        ("{% if %}", "simple_doorkey.j2, line 1"),
        ('{% extends "_room.j2" %}', "simple_doorkey.j2.*_room.j2.*_one_room"),
    ],
)
def test_faulty_prompts_raise_early(tmp_path, text, complaint):
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "simple_doorkey.j2").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        planner(prompt_folder=tmp_path)


def test_missing_model_or_prompt_raises():
    with pytest.raises(ConfigError, match="llm=none"):
        build_llm_planner(find_domain("two_door"), None)
    domain = find_domain("two_door")
    domain.prompt = "three_door"
    with pytest.raises(ConfigError, match=r"three_door.j2.*colored_doorkey"):
        build_llm_planner(domain, make_scripted_client())


class TestPaperReader:
    TASKS = ("simple_doorkey", "lava_doorkey", "colored_doorkey", "two_door")

    @staticmethod
    def planner(*texts, task="simple_doorkey", **options):
        model = Answers(*texts)
        planner = build_llm_planner(
            find_domain(task, parity=True),
            ChatClient(model),
            samples=1,
            prompt="published",
            parser="published",
            **options,
        )
        return planner, model

    @pytest.mark.parametrize("task", TASKS)
    def test_prompt_snapshot(self, task):
        text = self.planner("", task=task)[0].render_question(STATES[task]).text
        if task in ("simple_doorkey", "colored_doorkey"):
            check_snapshot(f"published_{task}", text)
        assert "JSON" not in text and text.endswith(f"State: {STATES[task]}\n")

    @pytest.mark.parametrize(
        ("reply", "plan"),
        [
            ("1. A key. 2. Take it. 3. So\nActions: {go to <key>, pick up <key>}", "go to <key>, pick up <key>"),
            ("action:{explore} and then Action: {drop <key>}", "explore"),
            ("Action: {go to <key>, fly to the <door>}", "go to <key>, wait"),
            ("Action: {open <door> with <key>}", "open <door>"),
            ("Action: {go east!}\nexplore", "explore"),  # what braces hold is not of words alone: all of it is read
            ("I would go to the key, then pick up the key", "go to <key>, pick up <key>"),
            ("I cannot help with that.", "wait"),
            ("", "wait"),
        ],
    )
    def test_replies(self, reply, plan):
        planner, model = self.planner(reply)
        plan_ = tuple(PlanStep(*step.rstrip(">").replace(" <", "<").split("<")) for step in plan.split(", "))
        assert planner.plans([KEY]) == [((plan_, 1.0),)]
        assert len(model.requests) == 1 and model.requests[0].schema is None
        assert planner.metrics()["teacher/fallbacks"] == 0 == planner.metrics()["llm/invalid_replies"]

    @pytest.mark.parametrize("task", TASKS)
    def test_plans_round_trip(self, task):
        """Also waiting, which is no skill of the prompt."""
        names = find_domain(task, parity=True).object_names
        steps = ", ".join(f"{verb} <{name}>" for verb in ("go to", "pick up", "drop", "open") for name in names)
        first, _ = self.planner(f"Action: {{fly, {steps}, explore}}", task=task)
        initial = first.plans([KEY])
        assert len(initial[0][0][0]) == 4 * len(names) + 2
        second, silent = self.planner("must not be asked", task=task)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert second.plans([KEY]) == initial and silent.requests == []

    def test_run_table_can_be_replayed(self, tmp_path):
        planner, _ = self.planner("Action: {fly, go to <key>}", folder=tmp_path)
        plans = planner.plans([KEY])
        restored = OfflinePlanner(
            find_domain("simple_doorkey", parity=True), str(tmp_path / "plans.json"), missing_state="error"
        )
        assert restored.plans([KEY]) == plans

    def test_task_outside_paper_raises(self):
        for domain in (find_domain("simple_doorkey"), find_domain("unlock_pickup")):
            with pytest.raises(ConfigError, match=r"teacher\.parser=published.*teacher\.parity=true"):
                build_llm_planner(domain, make_scripted_client(), parser="published")
        with pytest.raises(ConfigError, match=r"teacher/published.*'unlock_pickup'"):
            build_llm_planner(find_domain("unlock_pickup"), make_scripted_client(), prompt="published")


class TestOffline:
    @pytest.mark.parametrize("parity", [False, True])
    @pytest.mark.parametrize("task", [task for task in STATES if find_domain(task).tables])
    def test_rows_are_plan_distributions(self, task, parity):
        domain = find_domain(task, parity)
        table = OfflinePlanner(domain, "published" if parity else "corrected", missing_state="error")
        words = {"[1]": "blue" if "color" in task else "door1", "[2]": "red" if "color" in task else "door2"}
        for abstract in table._table.rows:
            sentence = abstract
            for sign, word in words.items():
                sentence = sentence.replace(sign, word)
            (plans,) = table.plans([sentence])
            assert sum(p for _, p in plans) == pytest.approx(1)
            assert len({plan for plan, _ in plans}) == len(plans)
        assert len(table._table.rows) == {"colored_doorkey": 14, "two_door": 9}.get(task, 6)

    def test_reference_numbers(self):
        domain = find_domain("simple_doorkey", parity=True)
        (plans,) = OfflinePlanner(domain, "published").plans([DOOR])
        go, open_ = PlanStep("go to", "door"), PlanStep("open", "door")
        assert plans == (
            ((go, open_), pytest.approx(0.92)),
            ((*FETCH, go, open_), 0.06),
            ((PlanStep("explore"), go), 0.02),
        )

    def test_invalid_plans_require_parity(self):
        domain = find_domain("simple_doorkey")
        assert OfflinePlanner(domain).plans(["Agent sees <nothing>, holds <key>."]) == [((EXPLORE, 1.0),)]

    def test_colors_are_interchangeable(self):
        table = OfflinePlanner(find_domain("colored_doorkey"))
        for a, b in (("red", "blue"), ("yellow", "green"), ("grey", "red")):
            (plans,) = table.plans([f"Agent sees <{a} key>, <{b} key>, <{b} door>, holds <nothing>."])
            assert plans[0] == ((PlanStep("go to", f"{b} key"), PlanStep("pick up", f"{b} key")), pytest.approx(0.72))

    def test_only_wrong_rows_are_corrected(self):
        domain, wrong = find_domain("colored_doorkey"), "Agent sees <red key>, <blue door>, holds <blue key>."
        reference, corrected = OfflinePlanner(domain, "published"), OfflinePlanner(domain, "corrected")
        assert reference.plans([wrong])[0][0][0][0] == PlanStep("drop", "blue key")
        assert corrected.plans([wrong])[0] == (((PlanStep("go to", "blue door"), PlanStep("open", "blue door")), 1.0),)
        changed = {s for s, row in reference._table.rows.items() if corrected._table.rows[s] != row}
        assert changed == {
            "Agent sees <[1] key>, holds <[2] key>.",
            "Agent sees <[1] key>, <[2] door>, holds <[2] key>.",
        }

    def test_misses(self, caplog):
        sentence = "Agent sees <lava>, holds <nothing>."
        table = OfflinePlanner(find_domain("lava_doorkey"))
        assert table.plans([sentence, sentence]) == [((EXPLORE, 1.0),)] * 2
        assert table.metrics() == {"teacher/fallbacks": 2.0}
        assert caplog.text.count(repr(sentence)) == 1
        with pytest.raises(ConfigError, match=r"teacher.missing_state=fallback"):
            OfflinePlanner(find_domain("lava_doorkey"), missing_state="error").plans([sentence])

    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            (None, "cannot be read: No such file"),
            ("{", "is not a plan table"),
            ('{"domain": "two_door", "plans": {}}', "two_door.*simple_doorkey"),
            ('{"domain": "simple_doorkey", "plans": {"x": {"explore": 0.5}}}', "sum to 1"),
            ('{"domain": "simple_doorkey", "plans": {"x": {}}}', "sum to 1"),
            ('{"domain": "simple_doorkey", "plan": {}}', "is not a plan table"),
        ],
    )
    def test_invalid_table_files(self, tmp_path, content, complaint):
        path = tmp_path / "plans.json"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ConfigError, match=complaint):
            OfflinePlanner(find_domain("simple_doorkey"), str(path))

    def test_rows_lacking_valid_plan(self, tmp_path):
        path = tmp_path / "plans.json"
        path.write_text('{"domain": "simple_doorkey", "plans": {"Agent sees <key>.": {"fly": 1.0}}}')
        with pytest.raises(ConfigError, match="'fly'"):
            OfflinePlanner(find_domain("simple_doorkey"), str(path))

    @pytest.mark.parametrize(
        ("domain", "sentence", "row", "complaint"),
        [
            ("simple_doorkey", KEY, {"explore": 0.5, "fly": 0.5}, "'fly'"),
            ("simple_doorkey", KEY, {"go to <door>": 1.0}, "'door'"),
        ],
    )
    def test_faulty_rows_raise_early(self, tmp_path, domain, sentence, row, complaint):
        path = tmp_path / "plans.json"
        words = ["door1", "door2"] if domain == "two_door" else []
        path.write_text(json.dumps({"domain": domain, "interchangeable": words, "plans": {sentence: row}}))
        with pytest.raises(ConfigError, match=complaint):
            OfflinePlanner(find_domain(domain), str(path))

    def test_missing_debate_warns(self, tmp_path, caplog):
        path = tmp_path / "plans.json"
        plans = {KEY: {"explore": 1.0}, f"{KEY} {ANNOUNCEMENT_PREFIX}bob: explore.": {"explore": 1.0}}
        path.write_text(json.dumps({"domain": "simple_doorkey", "plans": plans}))
        OfflinePlanner(find_domain("simple_doorkey"), str(path))
        assert "1 of 2 rows" in caplog.text and "debate" in caplog.text

    def test_missing_table_raises(self):
        with pytest.raises(ConfigError, match="unlock_pickup"):
            OfflinePlanner(find_domain("unlock_pickup"))


@pytest.mark.parametrize("task", STATES)
def test_oracles_plans_are_valid(task):
    domain = find_domain(task)
    (plans,) = OraclePlanner(domain).plans([STATES[task]])
    ((plan, p),) = plans
    assert p == 1.0 and parse_plan(", ".join(map(str, plan)), domain.skills, domain.objects(STATES[task])) == plan


def test_equal_plans_are_summed():
    assert normalize_weights([(EXPLORE, 1), (FETCH, 1), (EXPLORE, 2)]) == ((EXPLORE, 0.75), (FETCH, 0.25))


class TestRules:
    @pytest.mark.parametrize(
        ("task", "sentence", "plan"),
        [
            ("simple_doorkey", EMPTY_STATE, "explore"),
            ("simple_doorkey", KEY, "go to <key>, pick up <key>"),
            ("simple_doorkey", DOOR, "go to <door>, open <door>"),
            ("simple_doorkey", "Agent sees <nothing>, holds <key>.", "explore"),
            ("two_door", "Agent sees <door1>, <door2>, holds <key>.", "go to <door1>, open <door1>"),
            ("colored_doorkey", "Agent sees <red key>, <blue door>, holds <nothing>.", "explore"),
            ("colored_doorkey", "Agent sees <blue key>, <blue door>, holds <red key>.", "drop <red key>"),
            ("unlock_pickup", "Agent sees <open door>, <box>, holds <key>.", "drop <key>"),
            ("unlock_pickup", "Agent sees <open door>, <box>, holds <nothing>.", "go to <box>, pick up <box>"),
            ("unlock_pickup", "Agent sees <key>, <open door>, holds <nothing>.", "explore"),
        ],
    )
    def test_rules(self, task, sentence, plan):
        domain = find_domain(task)
        ((actual_plan, p),) = planner(task=task, samples=2).plans([sentence])[0]
        assert p == 1.0 and actual_plan == parse_plan(plan, domain.skills, domain.objects(sentence))

    def test_different_words(self):
        prompt = "You are the planner of an agent.\n- fetch <object>: get it\n{}State: You are at <pond> near <tree>."
        notes = []
        plan = json.loads(scripted_planner.reply(planner_request(prompt.format("")), note=notes.append))["plan"]
        assert plan == [{"skill": "fetch", "object": "pond"}] and "first skill" in notes[-1]
        plan = json.loads(scripted_planner.reply(planner_request(prompt.format("- rest: do nothing\n"))))["plan"]
        assert plan == [{"skill": "rest", "object": ""}]

    def test_unknown_tasks_raise(self):
        for prompt in ("You are the principal of a society.\nState: x", "You are the planner of an agent."):
            with pytest.raises(UnreadPromptError):
                scripted_planner.reply(planner_request(prompt))


def planner_request(prompt):
    return [{"role": "user", "content": prompt}]


def test_error_rate_is_the_share_of_states_with_random_plans():
    domain = find_domain("simple_doorkey")
    correct = OraclePlanner(domain)
    shares = {}
    for rate in (0.25, 1.0):
        changed = []
        for seed in range(200):
            erroneous = ErroneousPlanner(correct, rate, Seeds(seed))
            plans = erroneous.plans([KEY, DOOR, KEY])
            assert plans[0] == plans[2] == erroneous.plans([KEY])[0]
            changed += [plan != right for plan, right in zip(plans[:2], correct.plans([KEY, DOOR]), strict=True)]
            for ((steps, probability),) in plans[:2]:
                assert probability == 1.0
                assert all(step.object in ("", "key", "door") for step in steps)
        shares[rate] = sum(changed) / len(changed)
    assert 0.18 < shares[0.25] < 0.32
    # The right plans have two steps, a random one has one.
    assert shares[1.0] == 1.0
