import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.object_parser import TextParser, parse_object
from llmrl.llms.reading.vector_parser import VectorParser
from llmrl.llms.structured import json_schema

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
# No signs with which a value, another turn or a correction could begin, and no letters of "if", "bad" or "e.g.".
prose = st.text(st.sampled_from("abc fg jklm .\n"), max_size=60)  # no "hm", which reopens a question


class Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")
    reasoning: str = ""
    a: float = Field(alias="rate 1", strict=True, allow_inf_nan=False)
    b: float = Field(strict=True, allow_inf_nan=False)


def dollars(text, n):
    return parse_answer(text, VectorParser([f"number_{i}" for i in range(n)])).answer


class TestDollar:
    @given(
        values=st.lists(finite, min_size=2, max_size=6),
        prefix=prose,
        after=prose,
        separator=st.sampled_from([", ", ",", "; ", " ", "\n", " ,\n "]),
        brackets=st.sampled_from(["{}", "[{}]", "({})", "**{}**", "[[{}]]"]),
        dollar=st.sampled_from(["$", "$$", "\\$"]),
    )
    def test_finds_the_list_in_any_dress(self, values, prefix, after, separator, brackets, dollar):
        text = prefix + dollar + brackets.format(separator.join(map(repr, values))) + dollar + after
        assert np.array_equal(dollars(text, len(values)), values)

    @given(text=st.text(st.sampled_from("$0123456789.,;eE+-% \n*[]ab"), max_size=80), n=st.integers(1, 4))
    def test_result_is_finite_or_explains_error(self, text, n):
        try:
            values = dollars(text, n)
        except InvalidReply as error:
            assert str(error)
        else:
            assert values.shape == (n,) and np.isfinite(values).all()

    @pytest.mark.parametrize(
        ("text", "numbers"),
        [
            ("This costs $5 in all, so: $0.1, 0.2, 0.3$", [0.1, 0.2, 0.3]),
            ("$0.1, 0.2, 0.3$ saves $5 a step.", [0.1, 0.2, 0.3]),
            ("Between $5 and $10: $0.1, 0.2, 0.3$. Done.", [0.1, 0.2, 0.3]),
            ("First $1,1,1$, better $2,2,2$", [2, 2, 2]),
            ("$0.1,\n0.2,\n0.3\n$", [0.1, 0.2, 0.3]),
            ("$$\\[1, 2, 3\\]$$", [1, 2, 3]),
            ("$\u22121, +2, .5$", [-1, 2, 0.5]),
            ("$1e-2 2. 3E1$", [0.01, 2, 30]),
            ("$9, 9, 9$ " + "on second thoughts, " * 5000 + "$1, 2, 3$", [1, 2, 3]),
            ("$number_0=1, number_1=2, number_2=3$", [1, 2, 3]),
            ("They are $1$, $2$ and $3$.", [1, 2, 3]),
        ],
    )
    def test_examples(self, text, numbers):
        assert dollars(text, 3).tolist() == numbers

    @pytest.mark.parametrize(
        "text",
        [
            "no list at all",
            "it costs $5",
            "$$",
            "$ $",
            "$10%, 20%, 30%$",  # of what is not known where no bounds are
            "$0.1, 0.2$",
            "$0.1, 0.2, 0.3, 0.4$ and $5",
            "$0.1, nan, 0.3$",
            "$inf, 1, 1$",
            "$1e999, 1, 1$",
            "$__import__('os'), 1, 1$",
            "$\u0661, 1, 1$",
            "$1, 1, 1$ $2, 2, 2$",  # and nothing says which
        ],
    )
    def test_refusals(self, text):
        with pytest.raises(InvalidReply):
            dollars(text, 3)


class TestJson:
    @given(a=finite, b=finite, prefix=prose, after=prose, fence=st.sampled_from(["{}", "```json\n{}\n```", "`{}`"]))
    def test_finds_the_object_in_prose(self, a, b, prefix, after, fence):
        text = (
            prefix
            + "\n"
            + fence.replace("{}", json.dumps({"reasoning": "x {y} $", "rate 1": a, "b": b}))
            + "\n"
            + after
        )
        answer = parse_object(text, Answer)
        assert (answer.a, answer.b) == (a, b)

    @given(st.text(st.sampled_from('{}[]",:0123456789.eE-+ abnultrfs\\'), max_size=200))
    def test_text_parses_or_explains_error(self, text):
        try:
            parse_object(text, Answer)
        except InvalidReply as error:
            assert str(error)

    def test_correction_overrides_previous_answer(self):
        text = '{"rate 1": 1, "b": 1} no, rather {"rate 1": 2, "b": 2}; as in {"c": 3}'
        assert parse_object(text, Answer).b == 2
        with pytest.raises(InvalidReply, match="different answers"):
            parse_object(text.replace("no, rather", "and"), Answer)

    @pytest.mark.parametrize(
        "text", ['{"Rate_1": 1, "B": 2}', '{"answer": {"rate 1": 1, "b": 2}}', '[{"rate1": 1, "b": 2}]']
    )
    def test_names_in_wrappers(self, text):
        assert parse_object(text, Answer).b == 2

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "reply is empty"),
            ("[1, 2]", "no JSON"),
            ("I would rather not", "no JSON"),
            ('{"b": 2}', "'rate 1' is missing"),
            ('{"rate 1": "0.5", "b": 2}', "'rate 1'.*got \"0.5\""),
            ('{"rate 1": true, "b": 2}', "'rate 1'.*got true"),
            ('{"rate 1": null, "b": 2}', "'rate 1'.*got null"),
            ('{"rate 1": NaN, "b": 2}', "'rate 1'.*finite"),
            ('{"rate 1": 1e999, "b": 2}', "'rate 1'.*finite"),
            ('{"rate 1": [0.1], "b": "x"}', "'rate 1'.*; .*'b'"),
        ],
    )
    def test_refusals_name_the_field(self, text, message):
        with pytest.raises(InvalidReply, match=message):
            parse_object(text, Answer)

    def test_error_locates_json_fault(self):
        with pytest.raises(InvalidReply, match=r"line 2, column 1.*Expecting"):
            parse_object('{"x": 1,\n]', Answer)

    @pytest.mark.parametrize("text", ["{" * 200_000, '{"a":' * 20_000, '{"a": ' + "9" * 50_000 + "}"])
    def test_hostile_replies_end(self, text):
        with pytest.raises(InvalidReply):
            parse_object(text, Answer)

    def test_schema_is_strict_at_all_depths(self):
        class Nested(BaseModel):
            answers: list[Answer]
            default: Answer | None = None

        schema = json_schema(Nested)
        inner = schema["$defs"]["Answer"]
        assert schema["required"] == ["answers", "default"] == list(schema["properties"])
        assert inner["required"] == ["reasoning", "rate 1", "b"] == list(inner["properties"])
        assert schema["additionalProperties"] is inner["additionalProperties"] is False
        assert "default" not in inner["properties"]["reasoning"] and "default" not in schema["properties"]["default"]


@pytest.mark.parametrize(
    "text",
    [
        '{"lesson": "look left first"}',
        "```json\n{'Lesson': 'look left first'}\n```",
        "**Lesson:** look left first",
        "<think>hm</think>look left first",
        '{"answer": {"lesson": ["look left first"]}}',
    ],
)
def test_text_matches(text):
    assert parse_answer(text, TextParser("lesson", 100)).answer == "look left first"


@pytest.mark.parametrize(
    "text", ["", '{"lesson": ""}', '{"lesson": "<...>"}', "I'm sorry, I can't help with that.", "x " * 99]
)
def test_text_mismatches(text):
    with pytest.raises(InvalidReply):
        parse_answer(text, TextParser("lesson", 100))
