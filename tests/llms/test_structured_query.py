import pytest

from llmrl.core.errors import LLMError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.client import ChatClient
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.prompts import Prompt
from llmrl.llms.structured_query import MAX_QUOTED_CHARACTERS, StructuredQuery
from models import EchoProvider, make_client, make_request


def number(reply):
    text = reply.text
    if not text.strip().isdigit():
        raise InvalidReply(f"{text[:20]!r} is no number")
    return int(text)


class ReplyList(EchoProvider):
    """Model that returns the replies of a list in order."""

    def __init__(self, *texts, finish="", **facts):
        super().__init__(remote=False, **facts)
        self.texts, self.requests, self.finish = list(texts), [], finish

    def complete(self, requests):
        self.requests += requests
        return [ChatReply(self.texts.pop(0), finish=self.finish) for _ in requests]


def asker(model, repair_turns=1, **policies):
    client = make_client(model, **policies)
    return StructuredQuery(
        client, "test", number, lambda fault: Prompt(f"Wrong: {fault}"), {"type": "integer"}, repair_turns
    )


def questions(*texts):
    return [Prompt(text, "p/x", "abc") for text in texts]


def test_questions_are_batched():
    model = ReplyList("1", "two", "x", "4", "2", "y")
    query = asker(model)
    assert query.ask(questions("a", "b", "c", "d")) == [1, 2, None, 4]
    assert query.metrics() == {
        "llm/invalid_replies": 3.0,
        "llm/repairs": 1.0,
        "llm/fallbacks": 1.0,
        "llm/trimmed_prompts": 0.0,
    }
    assert [len(request.messages) for request in model.requests] == [1, 1, 1, 1, 3, 3]
    assert model.requests[4].messages[1:] == (
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "Wrong: 'two' is no number"},
    )


def test_request_carries_log_fields():
    model = ReplyList("1")
    asker(model).ask(questions("a"))
    [request] = model.requests
    assert (request.purpose, request.prompt, request.prompt_hash) == ("test", "p/x", "abc")
    assert request.schema == {"type": "integer"}
    assert request.parse(ChatReply("7")) == 7
    with pytest.raises(InvalidReply, match="'seven'"):
        request.parse(ChatReply("seven"))


def test_repair_truncates_long_or_empty_reply():
    model = ReplyList("", "y" * 10_000, "z")
    asker(model, repair_turns=2).ask(questions("a"))
    assert model.requests[1].messages[1]["content"] == "(empty reply)"
    assert len(model.requests[2].messages[3]["content"]) == MAX_QUOTED_CHARACTERS


def test_truncated_reply_repair_explains():
    model = ReplyList("12 an", "12", finish="length")
    assert asker(model).ask(questions("a")) == [12]
    assert "cut off" in model.requests[1].messages[2]["content"]


def test_call_failure_skips_repair():
    model = EchoProvider(fail={"a": LLMError("down")})
    query = asker(model, failures="fall_back")
    assert query.ask(questions("a", "7")) == [None, 7]
    assert sorted(model.asked) == ["7", "a"] and query.counters["fallbacks"] == 1


def test_full_window_skips_repair():
    model = ReplyList("word " * 30, context_window=40)
    assert asker(model).ask(questions("a")) == [None]
    assert len(model.requests) == 1


def test_state():
    query = asker(ReplyList("x", "y"))
    query.ask(questions("a"))
    second_query = asker(ReplyList())
    second_query.load_state_dict(query.state_dict())
    assert second_query.metrics() == query.metrics() and second_query.counters is not query.counters


class TestFit:
    def render(self, k):
        return Prompt("question " + "record " * k, "p/x")

    def fit(self, window, n=100):
        query = asker(EchoProvider(context_window=window, max_tokens=10))
        prompt, _ = query.fit_to_context(self.render, n)
        return prompt.text.count("record"), query.counters["trimmed_prompts"]

    def test_unknown_or_long_window_keeps_all(self):
        assert self.fit(None) == (100, 0) and self.fit(10**6) == (100, 0)

    def test_history_fits_window(self, caplog):
        # 4 tokens around a message, 2 of "question", 1 for each record, 10 of reply.
        assert self.fit(76) == (60, 1) and self.fit(16) == (0, 1)
        assert "60 of 100 " in caplog.text

    def test_minimal_prompt_overflow_raises(self):
        with pytest.raises(LLMError, match=r"p/x.*echo"):
            self.fit(15)


def test_questions_do_not_mix():
    """Fallbacks of a question do not change the repeats of other questions."""
    model = ReplyList("1", "2")
    client = ChatClient(model)
    client.chat([make_request("a")])
    assert StructuredQuery(client, "t", number, lambda fault: Prompt(fault), None, 0).ask(questions("a")) == [2]
    assert [request.repeat for request in model.requests] == [0, 1]


class TestConversations:
    """Tests of questions that are conversations with separate schemas."""

    def question(self, schema=None):
        turns = [("system", "rules"), ("user", "a"), ("assistant", "1"), ("user", "b")]
        messages = tuple({"role": role, "content": text} for role, text in turns)
        return ChatRequest(messages, schema, prompt="p/y", prompt_hash="def")

    def test_conversation_stays_unchanged(self):
        model = ReplyList("two", "2")
        query = asker(model)
        assert query.ask([self.question({"type": "string"})]) == [2]
        first, second = model.requests
        assert [m["role"] for m in first.messages] == ["system", "user", "assistant", "user"]
        assert [m["role"] for m in second.messages][4:] == ["assistant", "user"]
        assert (first.schema, first.prompt, first.prompt_hash) == ({"type": "string"}, "p/y", "def")
        assert asker(model).schema == {"type": "integer"}

    def test_usage_per_question(self):
        model = EchoProvider(remote=False, reply={"cost": 0.5}, fail={})
        query = asker(model, repair_turns=1)
        query.ask(questions("7", "x"))
        good, bad = query.query_stats
        assert (good.replies, good.invalid, good.text) == (1, 0, "7")
        assert (bad.replies, bad.invalid, bad.text) == (2, 2, "Wrong: 'x' is no number")
        assert (bad.prompt_tokens, bad.completion_tokens, bad.cost) == (6, 4, 1.0)

    def test_unknown_usage_is_not_zero(self):
        model = EchoProvider(remote=False, reply={"prompt_tokens": None})
        query = asker(model)
        query.ask(questions("7"))
        assert (query.query_stats[0].prompt_tokens, query.query_stats[0].cost) == (None, None)

    def test_call_failure_is_free(self):
        query = asker(EchoProvider(fail={"a": LLMError("down")}), failures="fall_back")
        query.ask(questions("a"))
        usage = query.query_stats[0]
        assert (usage.replies, usage.invalid, usage.failed, usage.prompt_tokens, usage.cost) == (0, 0, 1, 0, 0.0)


def test_thought_is_excluded_from_repair():
    model = ReplyList("<think>" + "hm " * 3000 + "</think>two", "2")
    assert asker(model).ask(questions("a")) == [2]
    assert model.requests[1].messages[1] == {"role": "assistant", "content": "two"}


@pytest.mark.parametrize("finish", ["length", "MAX_TOKENS", "model_length"])
def test_truncated_reply(finish):
    model = ReplyList("two", "2", finish=finish)
    query = asker(model)
    assert (
        query.ask(questions("a")) == [2]
        and ChatReply("", finish=finish).is_truncated
        and not ChatReply("", finish="stop").is_truncated
    )
    assert "'two' is no number" in model.requests[1].messages[2]["content"]
