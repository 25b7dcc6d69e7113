"""The client around a provider that counts: totals, repeats, the cache, failures."""

import json
import os
import stat
import threading

import pytest

from llmrl.core.errors import BudgetExhausted, Interrupted, LLMError, RunFolderError
from llmrl.core.model_protocols import ChatModel, UsageMeter
from llmrl.core.records import ChatRequest
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache
from llmrl.llms.client import ChatClient
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.request_key import request_key
from llmrl.llms.retry import Retry, TransientError
from models import Echo, ask


def cached(folder, model=None, mode="readwrite", **policies):
    return ChatClient(model or Echo(), Cache(folder, mode), **policies)


def test_is_a_chat_model_and_a_meter():
    assert isinstance(ChatClient(Echo()), ChatModel) and isinstance(ChatClient(Echo()), UsageMeter)


class TestTotals:
    def test_used_and_spent(self, tmp_path):
        client = cached(tmp_path)
        client.chat([ask("a"), ask("b")])
        again = cached(tmp_path)
        again.chat([ask("a"), ask("c")])
        used = {"llm/calls": 2.0, "llm/prompt_tokens": 6.0, "llm/completion_tokens": 4.0, "llm/cost": 14e-6}
        for metrics in (client.metrics(), again.metrics()):
            assert {name: metrics[name] for name in used} == pytest.approx(used)
        assert client.metrics()["spent/llm_calls"] == 2 and again.metrics()["spent/llm_calls"] == 1
        assert again.metrics()["spent/llm_tokens"] == 5

    def test_state(self):
        client = ChatClient(Echo())
        client.chat([ask()] * 3)
        other = ChatClient(Echo())
        other.load_state_dict(client.state_dict())
        expected = client.metrics()
        used = [name for name in expected if name.startswith("llm/")]
        assert len(used) == 4 and [other.metrics()[name] for name in used] == [expected[name] for name in used]
        other.chat([ask()])
        assert client.metrics() == expected, "the state must not be shared"

    def test_unknown_is_not_zero(self):
        model = Echo(reply={"prompt_tokens": None})
        client = ChatClient(model)
        client.chat([ask()])
        assert not {"llm/cost", "llm/prompt_tokens", "spent/llm_cost", "spent/llm_tokens"} & set(client.metrics())
        assert client.metrics()["llm/completion_tokens"] == 2
        model.reply["prompt_tokens"] = 3
        client.chat([ask()])
        assert "llm/cost" not in client.metrics(), "a sum with an unknown term stays unknown"

    def test_cost_of_tokens_out_of_the_provider_s_cache(self):
        model = Echo(reply={"prompt_tokens": 100, "completion_tokens": 0, "cached_tokens": 80}, cached_input_price=0.1)
        [reply] = ChatClient(model).chat([ask()])
        assert reply.cost == pytest.approx((20 * 1.0 + 80 * 0.1) / 1e6)
        model.cached_input_price = None
        [reply] = ChatClient(model).chat([ask()])
        assert reply.cost == pytest.approx(100e-6)


class TestRepeats:
    def test_the_same_question_twice_is_two_questions(self, tmp_path):
        model = Echo()
        client = cached(tmp_path, model)
        client.chat([ask("a"), ask("a"), ask("b")])
        client.chat([ask("a")])
        assert sorted(model.asked) == ["a", "a", "a", "b"]
        again = cached(tmp_path, model)
        again.chat([ask("b"), ask("a")])
        again.chat([ask("a"), ask("a")])
        assert len(model.asked) == 4, "in whatever batches they come, these four were asked before"
        again.chat([ask("a")])
        assert len(model.asked) == 5

    def test_a_resumed_run_asks_for_the_answers_it_had(self, tmp_path):
        model = Echo()
        client = cached(tmp_path, model)
        client.chat([ask("a")])
        state = client.state_dict()
        client.chat([ask("a")])
        resumed = cached(tmp_path, model)
        resumed.load_state_dict(state)
        resumed.chat([ask("a")])
        assert len(model.asked) == 2
        resumed.chat([ask("a")])
        assert len(model.asked) == 3

    def test_seeds_have_samples_of_their_own(self, tmp_path):
        model = Echo()
        for stream in (0, 1, None, 0, 1, None):
            cached(tmp_path, model, stream=stream).chat([ask("a")])
        assert len(model.asked) == 3

    def test_state_fits_a_checkpoint(self):
        client = ChatClient(Echo())
        client.chat([ask(f"{i}") for i in range(5)])
        repeats = client.state_dict()["repeats"]
        assert repeats["questions"].dtype == repeats["counts"].dtype == "int64" and len(repeats["counts"]) == 5


def test_request_key_changes_with_what_can_change_the_answer():
    identity = {"model": "m", "temperature": 1.0}
    base = request_key(identity, ask("a"))
    assert base == request_key(
        {"temperature": 1.0, "model": "m"},
        ask("a", purpose="another", prompt="p", prompt_hash="h", read=len),
    )
    others = [
        request_key({**identity, "temperature": 0.5}, ask("a")),
        request_key(identity, ask("b")),
        request_key(identity, ChatRequest(({"role": "system", "content": "a"},))),
        request_key(identity, ask("a", schema={"type": "object"})),
        request_key(identity, ask("a", repeat=1)),
        request_key(identity, ask("a"), stream=0),
        request_key(identity, ask("a"), stream=1),
    ]
    assert len({base, *others}) == 8


class TestCacheModes:
    def test_read_keeps_nothing_and_off_reads_nothing(self, tmp_path):
        model = Echo()
        cached(tmp_path / "x", model, "read").chat([ask("a")])
        assert not (tmp_path / "x").exists()
        cached(tmp_path, model).chat([ask("a")])
        cached(tmp_path, model, "read").chat([ask("a")])
        assert len(model.asked) == 2
        cached(tmp_path, model, "off").chat([ask("a")])
        assert len(model.asked) == 3

    def test_only_never_asks(self, tmp_path):
        model = Echo()
        cached(tmp_path, model).chat([ask("a")])
        client = cached(tmp_path, model, "only")
        assert client.chat([ask("a")])[0].text == "a"
        with pytest.raises(LLMError, match=r"llm.cache=only.*purpose 'test'.*llm.cache=readwrite"):
            client.chat([ask("b", purpose="test")])
        assert len(model.asked) == 1

    def test_entries_are_readable_and_exact(self, tmp_path):
        text = 'one\n\n two\t"three" \u00fc \u2028 {x}\r\n'
        request = ask(text, purpose="test", prompt="p/x", schema={"type": "object"})
        [reply] = cached(tmp_path).chat([request])
        [path] = tmp_path.rglob("*.json")
        entry = json.loads(path.read_text(encoding="utf-8"))
        assert entry["messages"] == [{"role": "user", "content": text.split("\n")}]
        assert entry["model"] == {"model": "echo"} and entry["prompt"] == "p/x" and entry["schema"]
        assert path.stem == entry["hash"] == request_key({"model": "echo"}, request)
        [again] = cached(tmp_path).chat([request])
        assert again.text == reply.text == text and again.attempts == 0 and again.cost == reply.cost

    def test_half_a_surrogate_can_be_kept(self, tmp_path):
        client = cached(tmp_path, Echo())
        client.provider.complete = lambda requests: [type(r)(text="x\ud800y") for r in Echo().complete(requests)]
        assert client.chat([ask("a")])[0].text == cached(tmp_path).chat([ask("a")])[0].text == "x\ufffdy"

    @pytest.mark.parametrize("damage", ["", "{", "[]", '{"reply": {"text": "flat"}}', "\x00\xff"])
    def test_a_damaged_entry_is_asked_for_anew_and_replaced(self, tmp_path, caplog, damage):
        model = Echo()
        cached(tmp_path, model).chat([ask("a")])
        [path] = tmp_path.rglob("*.json")
        path.write_bytes(damage.encode("latin-1"))
        assert cached(tmp_path, model).chat([ask("a")])[0].text == "a"
        assert "is damaged" in caplog.text and len(model.asked) == 2
        assert cached(tmp_path, model).chat([ask("a")])[0].text == "a" and len(model.asked) == 2

    def test_the_first_of_two_replies_stays(self, tmp_path):
        cache, request = Cache(tmp_path), ask("a")
        [reply] = ChatClient(Echo()).chat([request])
        key = request_key({"model": "echo"}, request)
        from dataclasses import replace

        first = cache.put(key, {}, request, replace(reply, text="first"))
        second = cache.put(key, {}, request, replace(reply, text="second"))
        assert first.text == second.text == cache.get(key).text == "first"
        assert not list(tmp_path.rglob("*.tmp"))

    def test_unwritable_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(RunFolderError, match=r"llm.cache_dir=.*llm.cache=off"):
            cached(tmp_path / "file").chat([ask("a")])

    def test_entries_can_be_read_by_a_group(self, tmp_path):
        cached(tmp_path).chat([ask("a")])
        [path] = tmp_path.rglob("*.json")
        umask = os.umask(0)
        os.umask(umask)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


class TestFailures:
    def test_all_are_tried_and_kept_before_the_error(self, tmp_path):
        model = Echo(fail={"1": LLMError("no")})
        with pytest.raises(LLMError, match=r"no \(1 of 4 requests failed\)"):
            cached(tmp_path, model, limits=RateLimit(1)).chat([ask(f"{i}") for i in range(4)])
        assert model.asked == ["0", "1", "2", "3"] and len(list(tmp_path.rglob("*.json"))) == 3

    @pytest.mark.parametrize("parallel", [True, False])
    def test_fall_back_goes_on_without(self, parallel):
        model = Echo(parallel=parallel, fail={"1": LLMError("no")})
        client = ChatClient(model, failures="fall_back")
        replies = client.chat([ask("0"), ask("1")])
        assert [reply.error for reply in replies] == (["", "no"] if parallel else ["no", "no"])
        assert replies[1].text == ""

    def test_an_exhausted_budget_is_no_failure_to_go_on_without(self):
        with pytest.raises(BudgetExhausted):
            ChatClient(Echo(), budget=Budget(calls=0), failures="fall_back").chat([ask()])

    def test_a_busy_server_holds_all_threads(self):
        model, limits = Echo(), RateLimit()
        busy = iter([TransientError("busy", retry_after=0.3)])
        whole = model.complete

        def complete(requests):
            for error in busy:
                raise error
            return whole(requests)

        model.complete = complete
        held = []
        limits.hold = held.append
        ChatClient(model, retry=Retry(1, first_delay=0.0), limits=limits).chat([ask()])
        assert held == [0.3]

    def test_errors_of_ours_are_not_swallowed(self):
        model = Echo(fail={"1": ZeroDivisionError()})
        before = {*threading.enumerate()}  # of other tests, on their way out
        with pytest.raises(ZeroDivisionError):
            ChatClient(model).chat([ask("0"), ask("1")])
        started = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("llm")]
        for thread in started:
            thread.join(20)
        assert not any(thread.is_alive() for thread in started)


def test_batches_of_a_local_model_are_asked_at_once():
    model = Echo(parallel=False)
    calls = []
    whole = model.complete
    model.complete = lambda requests: calls.append(len(requests)) or whole(requests)
    replies = ChatClient(model).chat([ask(f"{i}") for i in range(5)])
    assert calls == [5] and [reply.text for reply in replies] == list("01234")


def test_context_window():
    client = ChatClient(Echo(context_window=20, max_tokens=10))
    assert client.fits([{"role": "user", "content": "a " * 6}])
    assert not client.fits([{"role": "user", "content": "a " * 7}])
    assert ChatClient(Echo(max_tokens=10)).fits([{"role": "user", "content": "a " * 10**6}])


class TestStopping:
    """A signal while a server is down: nothing is waited for, nothing more is sent."""

    def client(self, stopping, **policies):
        model = Echo(fail={"a": TransientError("down")})
        return ChatClient(model, retry=Retry(5, first_delay=60.0), stopping=stopping, **policies)

    @pytest.mark.parametrize("questions", [("a",), ("a", "a", "a")])
    def test_waits_end(self, questions):
        stop = threading.Event()
        threading.Timer(0.3, stop.set).start()
        client = self.client(stop.is_set, failures="fall_back")
        with pytest.raises(Interrupted):
            client.chat([ask(text) for text in questions])
        assert len(client.provider.asked) == len(questions)

    def test_no_request_is_sent_after(self):
        client = self.client(lambda: True)
        with pytest.raises(Interrupted):
            client.chat([ask("b")])
        assert client.provider.asked == []

    def test_what_is_kept_can_still_be_read(self, tmp_path):
        cached(tmp_path).chat([ask("b")])
        client = self.client(lambda: True, cache=Cache(tmp_path))
        assert client.chat([ask("b")])[0].text == "b"
