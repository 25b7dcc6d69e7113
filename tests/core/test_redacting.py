"""Secrets are redacted in texts and rejected in configs; other text is unchanged."""

import base64
import json
import re
import shlex
import string
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import llmrl
from llmrl.core import secrets
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import get_file, get_root, list_paths, read_file
from llmrl.core.secrets import (
    REDACTED,
    check_no_secrets,
    check_no_secrets_in_arguments,
    find_rejection_reason,
    find_variable_rejection_reason,
    is_secret_name,
    redact,
    redact_arguments,
    redact_code,
    redact_folder_names,
    redact_nested,
    register_resolved_variable,
    register_secret_variable,
)

OPTIONS = list_paths()
REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")])
PROMPTS = sorted(Path(llmrl.__file__).parent.rglob("*.j2"))

ALNUM = string.ascii_letters + string.digits
RANDOM_KEY = "Zq3vXw81LkTn0PfYb7RdUeA9cV5sH2mJ4gKx"
SECRETS = [
    f"sk-{RANDOM_KEY}",
    f"sk-proj-{RANDOM_KEY[:12]}_{RANDOM_KEY[12:]}",
    "sk-live-SECRETSECRET",
    f"hf_{RANDOM_KEY}",
    f"gho_{RANDOM_KEY}",
    f"github_pat_{RANDOM_KEY}",
    f"gsk_{RANDOM_KEY}",
    f"AIza{RANDOM_KEY}",
    "AKIAIOSFODNN7EXAMPLE",
    f"glpat-{RANDOM_KEY}",
    f"xoxb-1234567890-{RANDOM_KEY}",
    f"eyJhbGciOiJIUzI1NiJ9.{RANDOM_KEY}.{RANDOM_KEY}",
    f"Bearer {RANDOM_KEY}",
    "Authorization: Basic dXNlcjpwYXNz",
    "http://user:correcthorse@host/v1",
    "https://justatoken@host/v1",
    "https://user:p@ss:w@host:80/v1?x=1",
    "http://host/v1?api_key=correcthorse",
    "http://host/v1?a=b&X-Auth-Token=correcthorse",
    "http://host/v1?sig=correcthorse&b=c",
    "http://host/v1?api%5Fkey=correcthorse",
    "http://host/v1?key=correcthorse",
]
HIDDEN = (
    RANDOM_KEY,
    RANDOM_KEY[12:],
    "correcthorse",
    "p@ss",
    "ss:w",
    "SECRETSECRET",
    "justatoken",
    "IOSFODNN7",
    "dXNlcjpwYXNz",
)


def holds_secret(text):
    return any(piece in text for piece in HIDDEN)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("template", ["{}", "see {}, please", "'{}'", 'x="{}"', "a\n{}\nb", "a\\n{}\\nb", "({})"])
def test_redacts_secret_patterns(secret, template):
    text = template.format(secret)
    assert holds_secret(text) and not holds_secret(redact(text)) and REDACTED in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    ("text", "remainder"),
    [
        ("see http://user:correcthorse@host/v1, please", f"see http://{REDACTED}@host/v1, please"),
        ("http://h/v1?a=b&X-Auth-Token=correcthorse&c=d#e", f"http://h/v1?a=b&X-Auth-Token={REDACTED}&c=d#e"),
        ("http://h/v1?a=b&amp;api%5Fkey=correcthorse", f"http://h/v1?a=b&amp;api%5Fkey={REDACTED}"),
        ("a=b&X-Auth-Token=correcthorse", f"a=b&X-Auth-Token={REDACTED}"),
        ("(Bearer abc123.)", f"(Bearer {REDACTED})"),
        ("authorization: token abc123 or", f"authorization: token {REDACTED} or"),
        ("Bearer aBcdef", f"Bearer {REDACTED}"),
        ("a bearer certificate. Bearer Certificates", None),
        ("sk-ab-abcdefghi1", REDACTED),
        ("sk_ab-abcdefghi1", REDACTED),
        ("sk-abc-abcdefgh1", None),
        ("sk-abcdefghijk", None),
        ("sk-abcdefghijkL", REDACTED),
        ("sk-a1-b2-c3-d4", None),
        ("sk-A1-b2-c3-d45", REDACTED),
    ],
)
def test_remaining_text(text, remainder):
    assert redact(text) == (text if remainder is None else remainder)


@pytest.mark.parametrize(
    ("code", "remainder"),
    [
        ('x = {"api_key": "abc", "b": 1}', f'x = {{"api_key": "{REDACTED}", "b": 1}}'),
        ("my_password=abc next", f"my_password={REDACTED} next"),
        ("export OPENAI_API_KEY='abc'; run", f"export OPENAI_API_KEY='{REDACTED}'; run"),
        *(
            (code, None)
            for code in (
                "api_key_env=MY_KEY",
                "api_key_header: api-key",
                "api-key-env: MY_KEY",
                "api_key_query=key",
                "pad_token=abc",
                "password=$HOME",
                "password=[a]",
                "password=12.5",
                "password=None",
            )
        ),
    ],
)
def test_remaining_code(code, remainder):
    assert redact_code(code) == (code if remainder is None else remainder)


def test_remaining_command_line():
    arguments = ["run", "--api-key", "abc", "-my-password", "abc", "api_key=abc", "--keys", "abc"]
    remainder = ["run", "--api-key", REDACTED, "-my-password", REDACTED, f"api_key={REDACTED}", "--keys", "abc"]
    assert redact_arguments(arguments) == remainder
    assert redact_arguments(["abc", "run", "--token"]) == ["abc", "run", "--token"]


@pytest.mark.parametrize("secret", SECRETS)
def test_rejected_secrets_are_not_repeated(secret):
    for place in ("llm.base_url", "name", "env.kwargs.anything"):
        with pytest.raises(ConfigError, match=re.escape(place)) as error:
            check_no_secrets_in_arguments([f"{place}={secret}"])
        assert not holds_secret(str(error.value))
    with pytest.raises(ConfigError, match=r"a\.b\[1\]\.c") as error:
        check_no_secrets({"a": {"b": [0, {"c": secret}]}})
    assert not holds_secret(str(error.value))
    with pytest.raises(ConfigError) as error:
        check_no_secrets({"a": {secret: 1}})
    assert not holds_secret(str(error.value))


@given(st.text(alphabet=ALNUM + "/+=_-", min_size=8, max_size=60), st.text(max_size=40), st.text(max_size=40))
def test_redacts_secret_variables(secret, prefix, after):
    assume(not Path(secret).exists())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_API_KEY", secret)
        for text in (prefix + secret + after, json.dumps(prefix + secret)):
            assert secret not in redact(text).replace(REDACTED, "")


@given(
    st.text(alphabet=ALNUM + "/+=_-", min_size=8, max_size=60),
    st.binary(max_size=9),
    st.binary(max_size=9),
    st.sampled_from([base64.b64encode, base64.urlsafe_b64encode]),
)
def test_redacts_base64_secret_variables(secret, prefix, after, encode):
    assume(not Path(secret).exists())  # the path of a file is no secret
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_API_KEY", secret)
        text = encode(prefix + secret.encode() + after).decode()
        remainder = redact(f"Basic {text}").removeprefix("Basic ")
        # At most the characters at both ends are left, which encode other bytes, too.
        assert remainder.startswith(text[: len(prefix) * 4 // 3]) and REDACTED in remainder
        assert len(remainder.replace(REDACTED, "")) <= len(text) - len(secret) * 4 // 3 + 2


@given(
    st.text(alphabet=ALNUM + "/+=_-", min_size=8, max_size=60), st.sampled_from([str.upper, str.lower, str.swapcase])
)
def test_secret_variables_are_redacted_case_insensitively(secret, change):
    assume(not Path(secret).exists())  # the path of a file with the key is not secret
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_API_KEY", secret)
        assert redact(f"<{change(secret)}>") == f"<{REDACTED}>"


@pytest.mark.parametrize(
    "name", ["A_KEY", "B_TOKEN", "C_SECRET", "D_PASSWORD", "lower_key", "Db_Passwd", "E_CREDENTIALS"]
)
def test_secret_variable_names(name, monkeypatch):
    monkeypatch.setenv(name, "correcthorse\n")
    assert redact("is correcthorse it?") == f"is {REDACTED} it?"
    with pytest.raises(ConfigError, match="x holds"):
        check_no_secrets({"x": "correcthorse"})


def test_key_in_unusual_variable(monkeypatch):
    monkeypatch.setattr(secrets, "_secret_variables", set())  # no test after this one knows of the variable
    monkeypatch.setenv("MY_OPENAI", "correcthorse")
    assert redact("correcthorse") == "correcthorse"
    register_secret_variable("MY_OPENAI")
    assert redact("correcthorse") == REDACTED


def test_short_values_and_paths_are_not_secrets(monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_KEY", "none")
    monkeypatch.setenv("OTHER_CREDENTIALS", str(tmp_path))
    assert redact(f"none {tmp_path}") == f"none {tmp_path}"
    monkeypatch.setenv("SOME_KEY", "1234567")
    monkeypatch.setenv("ANOTHER_KEY", "Xcorrect")
    monkeypatch.chdir(tmp_path)
    Path("Xcorrect").touch()
    assert redact("1234567 Xcorrect") == f"1234567 {REDACTED}", (
        "a place is not relative to the one where a run is begun"
    )


@pytest.mark.parametrize(
    "secret", ["~nosuchuser-correcthorse/x", "/" + 300 * "correcthorse", "/correcthorse\0battery"], ids=lambda s: s[:9]
)
def test_secret_that_is_no_valid_path(secret, monkeypatch):
    monkeypatch.setattr(secrets, "_list_resolved_variables", lambda: [])
    environment = {"SOME_KEY": secret}
    monkeypatch.setattr(secrets.os, "environ", environment)
    assert redact(f"a {secret} b") == f"a {REDACTED} b"
    register_resolved_variable("SOME_KEY")
    assert redact_folder_names(Path("~nosuchuser-correcthorse/x")) == Path("~nosuchuser-correcthorse/x")
    assert redact_folder_names(Path("outputs", 300 * "a")) == Path("outputs", 300 * "a")


def test_url_secrets_and_longest_first(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "correct/horse")
    monkeypatch.setenv("OTHER_KEY", "correct/horse staple")
    assert redact("correct%2Fhorse, correct/horse staple") == f"{REDACTED}, {REDACTED}"
    assert redact("correct%2Fhorse%20staple") == REDACTED
    monkeypatch.setenv("OTHER_KEY", "a correct/horse")
    assert redact("a correct/horse") == REDACTED
    monkeypatch.setenv("SOME_KEY", 'correct"horse')
    assert redact(json.dumps({"a": 'correct"horse'})) == json.dumps({"a": REDACTED})


def test_nested_containers(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "correcthorse")
    nested = {"correcthorse": [1, None, True, ("correcthorse",), {"a": 0.5, "b": "correcthorse"}]}
    assert redact_nested(nested) == {REDACTED: [1, None, True, [REDACTED], {"a": 0.5, "b": REDACTED}]}


def test_explicit_secrets_replace_environment(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "correcthorse")
    text, remainder = "a staple, a correcthorse", f"a {REDACTED}, a correcthorse"
    assert redact(text, ["staple"]) == redact_code(text, ["staple"]) == remainder
    assert redact_nested({text: [text]}, ["staple"]) == {remainder: [remainder]}
    assert find_rejection_reason("a.b", "staple", ["staple"]) is not None
    assert find_rejection_reason("a.b", "correcthorse", ["staple"]) is None


@pytest.mark.parametrize(
    "value",
    [
        "${oc.env:OPENAI_API_KEY}",
        "${oc.env:OPENAI_API_KEY,none}",
        "${oc.env: MY_TOKEN }",
        "${oc.env:'A_SECRET'}",
        '${oc.env:"DB_PASSWORD"}',
        "http://h/v1?k=${oc.env:openai_api_key}",
        "${oc.decode:${oc.env:OPENAI_API_KEY}}",
        "${oc.env:${name}}",
    ],
)
def test_rejects_interpolation_of_secret_variable(value):
    with pytest.raises(ConfigError, match=r"llm\.model"):
        check_no_secrets({"llm": {"model": value}})
    with pytest.raises(ConfigError, match=r"llm\.model"):
        check_no_secrets_in_arguments([f"llm.model='{value}'"])


def test_interpolation_of_plain_variables_is_accepted():
    check_no_secrets({"a": "${oc.env:HOME}/x", "b": "${oc.env:USER,nobody}", "c": "${output_root}/llm_cache"})


@pytest.mark.parametrize(
    "name",
    [
        *(secret for secret in SECRETS if " " not in secret),
        "abcd1234EFGH5678ijkl",
        "0123456789abcdef0123456789abcdef",
        "A1B2C3D4E5F6A7B8C9D0",
        "hunter2",
        "my-key",
        "two words",
        "",
        "$OPENAI_API_KEY",
    ],
)
def test_invalid_variable_names(name, monkeypatch):
    wrong = find_variable_rejection_reason(name)
    assert wrong is not None and "OPENAI_API_KEY" in wrong
    assert not name or name == "$OPENAI_API_KEY" or name not in wrong
    assert not name or find_rejection_reason("llm.api_key_env", name) == wrong


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("two words", "is not a variable name"),
        ("", "is not a variable name"),
        (24 * "A", "looks like a key itself"),
        ("MY_ABCDEFGHIJK1", "looks like a key itself"),
        ("a" * 23, "is the name of an unset variable and not in capital letters, digits and underscores"),
        ("abcdefghij1", "is the name of an unset variable and not in capital letters, digits and underscores"),
        (23 * "A", None),
        ("ABCDEFGHIJ1_ABC", None),
    ],
)
def test_message_for_variable_name(name, wrong):
    message = "must name the environment variable that holds the key, such as OPENAI_API_KEY, but its value {}. "
    message += "(The value is not repeated here, because it may be the key.)"
    assert find_variable_rejection_reason(name) == (None if wrong is None else message.format(wrong))


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "MY_KEY", "KEY2", "LAB_GPT4O_KEY", "A", "AZURE_OPENAI_KEY_2026"])
def test_variable_names(name):
    assert find_variable_rejection_reason(name) is None


def test_unusual_name_is_accepted_if_set(monkeypatch):
    assert find_variable_rejection_reason("myOpenAiKey") is not None
    monkeypatch.setenv("myOpenAiKey", "correcthorse")
    assert find_variable_rejection_reason("myOpenAiKey") is None
    assert find_variable_rejection_reason("correcthorse") is not None


REPLACEMENTS = (
    ". Put a key into an environment variable and name that variable in llm.api_key_env, because configs are saved in "
    "files"
)


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("a.b", "${oc.env:MY_KEY}", "reads the environment variable MY_KEY, which holds a secret"),
        ("a.b", "${oc.env:${c}}", "reads an environment variable whose name is itself interpolated"),
        ("a.b", "http://user:correcthorse@host/v1", "holds a URL with a user name or password"),
        ("a.b", "user:pw@host:80/v1", "holds a URL with a user name or password"),
        ("a.b", "http://h/v1?a=b&sig=1", "holds a URL with what looks like a key among its query parameters"),
        ("a.b", "sk-live-SECRETSECRET", "holds what looks like a key or password"),
        ("a.b", "my_password=abc", "holds what looks like a key or password"),
        ("a.my_token", "abcdefgh", "holds what looks like a key or password"),
        *(("a.my_token", value, None) for value in ("abcdefg", "$abcdefgh", "<abcdefgh>", "?abcdefgh", "12345678.5")),
        ("my_token.a", "abcdefgh", None),
        ("a.key", "abcdefgh", None),
        ("a.b", "", None),
    ],
)
def test_message_for_secret_text(name, value, wrong):
    assert find_rejection_reason(name, value) == (None if wrong is None else wrong + REPLACEMENTS)


def test_messages_for_config_and_command_line():
    wrong = "holds what looks like a key or password" + REPLACEMENTS
    for call, location in (
        (partial(check_no_secrets, {"a": {"my_token": [1, "abcdefgh"]}}), "a.my_token[1]"),
        (partial(check_no_secrets, {1: {"my_token": "abcdefgh"}}), "1.my_token"),
        (partial(check_no_secrets, {f"sk-{RANDOM_KEY}": 1}), "a key in the config"),
        (partial(check_no_secrets, {"a": [{f"sk-{RANDOM_KEY}": 1}]}), "a key in a[0]"),
        (partial(check_no_secrets_in_arguments, ["a=1", "+a.my_token=abcdefgh"]), "a.my_token"),
        (partial(check_no_secrets_in_arguments, ["X.my_token=abcdefgh"]), "X.my_token"),
        (partial(check_no_secrets_in_arguments, ["a=1", f"sk-{RANDOM_KEY}=1"]), "argument 2"),
        (partial(check_no_secrets_in_arguments, ["a=1", f"sk-{RANDOM_KEY}"]), "argument 2"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(f'{location} {wrong}')}$"):
            call()


@pytest.mark.parametrize(
    "argument",
    [
        "llm.base_url=u:pw@host/v1",
        "llm.base_url='u:pw@host:8000'",
        "+llm.api_key=abcdefgh",
        "++env.kwargs.auth_token=abcdefgh",
        "hydra.job.env_set.OPENAI_API_KEY=abcdefgh",
        "llm={model: x, api_key: abcdefgh}",
        "llm.base_url='http://host/v1?k=abcdefgh'",
        "llm.base_url='http://host/v1;key=abcdefgh'",
        "loggers.mlflow.tracking_uri='https://host/#abcdefgh'",
        "hardware.backend.setup=['export OPENAI_API_KEY=abcdefgh']",
        "hardware.backend.setup='[\"export HF_TOKEN=abcdefgh\"]'",
        f"seed=0,sk-{RANDOM_KEY}",
        f"sk-{RANDOM_KEY}",
        f"sk-{RANDOM_KEY}=1",
    ],
)
def test_rejected_overrides(argument):
    with pytest.raises(ConfigError) as error:
        check_no_secrets_in_arguments(["env=cleanup", argument])
    assert "abcdefgh" not in str(error.value) and RANDOM_KEY not in str(error.value) and "pw@" not in str(error.value)


@pytest.mark.parametrize(
    "argument",
    [
        "name=sk-learn-baseline-v2",
        "name=task-key-door-with-a-long-name-2026",
        "llm.model=hf-internal-testing/tiny-random-gpt2",
        "llm.model=meta-llama/Llama-3.1-8B-Instruct",
        "llm.model=Qwen/Qwen2.5-0.5B-Instruct",
        "agent.init_from=outputs/cleanup/principal_ucb-7983c0fb/s0",
        "'llm.calls=outputs/cleanup/llm_gpt4o-principal_llm-0a1b2c3d/s0'",
        "llm.base_url=http://user.example.org:8000/v1",
        "llm.base_url=https://example.openai.azure.com/openai/v1",
        "llm.max_tokens=100000000",
        "env.kwargs.pad_token=<|endoftext|>",
        "llm.eos_token=abcdefghijk",
        "+env.kwargs.key=red",
        "env.text=texts/secret_door.yaml",
        "hardware.backend.setup=[\"source $HOME/.llmrl_keys\",'export HF_HOME=/shared/hf']",
        "hardware.backend.setup=['export OPENAI_API_KEY=$(cat $HOME/.key)']",
        "learn.mechanism=[0.25,0.5,0.125]",
        "env.map=da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "llm.api_key_env=null",
        "llm.api_key_env=LAB_KEY",
    ],
)
def test_accepted_overrides(argument):
    check_no_secrets_in_arguments([argument])
    assert redact(argument) == argument and redact_arguments([argument]) == [argument]


@pytest.mark.slow
@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: path.relative_to(get_root()).as_posix())
def test_package_options_are_accepted(path):
    text = get_file(path).read_text(encoding="utf-8")
    assert redact_code(text) == text
    check_no_secrets(read_file(path))
    option = path.relative_to(get_root()).with_suffix("").as_posix()
    group, _, name = option.partition("/")
    check_no_secrets_in_arguments([f"{group}={name}", f"name={name.replace('/', '_')}"])


@pytest.mark.parametrize("path", [*PAGES, *PROMPTS], ids=lambda path: path.name)
def test_pages_and_prompts_are_unchanged(path):
    text = path.read_text(encoding="utf-8")
    assert redact(text) == text


def test_documented_commands_are_accepted():
    commands = [line for page in PAGES for line in re.findall(r"llmrl-(?:train|finetune) [^`\n]*", page.read_text())]
    assert len(commands) > 150
    for command in commands:
        try:
            words = shlex.split(command, comments=True)
        except ValueError:
            continue  # the middle of a sentence
        check_no_secrets_in_arguments(words[1:])


NAMES = st.sampled_from(["env", "agent.ppo.learning_rate", "llm.model", "name", "principal.prompt", "env.kwargs.g"])
WORDS = st.text(alphabet=string.ascii_lowercase + string.digits + "_./", min_size=1, max_size=40)
VALUES = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False).map(str),
    st.booleans().map(str),
    WORDS,
    st.lists(st.integers()).map(str),
    st.text(alphabet="0123456789abcdef", min_size=8, max_size=64),
)


@given(NAMES, VALUES)
def test_ordinary_overrides_pass(name, value):
    if (
        "hf_" not in value
        and "r8_" not in value
        and "gsk_" not in value
        and not re.search("(^|[^a-z0-9])[spr]k_|gh._", value)
    ):
        check_no_secrets_in_arguments([f"{name}={value}"])
        assert redact(f"{name}={value}") == f"{name}={value}"


@given(st.text())
def test_arbitrary_text_is_redactable(text):
    redacted = redact_code(text)
    assert redact_code(redacted) == redacted
    find_rejection_reason("a.b", text)
    find_variable_rejection_reason(text)
    is_secret_name(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    ["a.-", "://", "?a", "a", "bearer ", "sk-", "&aaaa=&", "x://a", "-----BEGIN PRIVATE KEY-----", "eyJ.", "api_key"],
)
def test_long_texts_take_linear_time(piece):
    """Allow seconds for half a million characters; quadratic time would take hours."""
    text = (piece * 500_000)[:500_000]
    start = time.process_time()
    redact_code(text)
    find_rejection_reason("a", text)
    assert time.process_time() - start < 20
