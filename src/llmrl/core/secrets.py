"""Recognition of keys and passwords, their redaction in texts, and the rejection of configs that contain them.

Everything that a run writes or prints passes through `redact`. A config that contains a secret is rejected before a
run is composed from it (`check_no_secrets`), because configs are saved, hashed and used in file names.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from llmrl.core.errors import ConfigError
from llmrl.core.printable import is_number

REDACTED = "<redacted>"
MIN_SECRET_LENGTH = 8
"""Minimum length of a secret in an environment variable. Shorter values, such as `none` and `true`, are not secrets."""

_VARIABLE_SUFFIXES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS")
"""Endings of the names of environment variables that contain secrets."""
_secret_variables: set[str] = set()  # environment variables that `register_secret_variable` adds
_RESOLVED_NAMES_VARIABLE = "LLMRL_RESOLVED_VARIABLES"
"""Environment variable with the names of the variables that configs have read, for child processes. The separator is
`=`, which no name contains."""

_WORD_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
"""Start of a word, which may follow an escaped line break in JSON."""
_KEY_PREFIXES_BY_SUBSTRING = {
    "_": ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "gsk_", "r8_"),
    "-": ("glpat-", "xox", "nvapi-", "KEY-"),
    "A": ("AIza", "AKIA", "ASIA"),
    "eyJ": ("eyJ",),
}
"""Prefixes of service keys by a substring that they contain. Most texts contain few of the substrings, so most prefixes
need not be searched for."""
_SERVICE_KEY_PATTERN = (
    rf"{_WORD_START}(?:"
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|gsk_[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{20,}|nvapi-[A-Za-z0-9_-]{20,}"
    r"|AIza[A-Za-z0-9_-]{30,}|A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{0,10000}"
    r")"
)
"""Keys of Hugging Face, GitHub, GitLab, Slack, Groq, Replicate, NVIDIA, Google and AWS; JSON web tokens; PEM files."""
_SK_KEY_PATTERN = rf"{_WORD_START}[spr]k[-_]([A-Za-z0-9_-]{{12,}})"
_URL_USERINFO_PATTERN = r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/?#\"'<>\\]{1,300}@"
_QUERY_PARAMETER_PATTERN = r"([?&](?:amp;)?)([A-Za-z0-9_.%~\[\]-]{1,64})(=)([^&\s\"'`#<>\\]+)"
_AUTHORIZATION_PATTERN = (
    rf"(?i){_WORD_START}(bearer\s{{1,3}}|authorization[\"']?\s{{0,3}}[:=]\s{{0,3}}[\"']?(?:basic|token)\s{{1,3}})"
    r"([\w.~+/=-]{6,})"
)
_SECRET_NAME_PATTERN = r"(?:api[_-]?key|access[_-]?key|secret|password|passwd|credential|(?<![a-z])token)(?![a-z])"
_ASSIGNMENT_PATTERN = (
    rf"(?i)((?<![\w.-])[\w.-]{{0,64}}{_SECRET_NAME_PATTERN}[\w.-]{{0,32}}[\"']?\s{{0,3}}[=:]\s{{0,3}}[\"']?)"
    r"([^\s\"',<>{}]+)"
)
_SHELL_ASSIGNMENT_PATTERN = (
    r"(\b[A-Z][A-Z0-9_]{0,64}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)=[\"']?)([^\s\"'$;<>][^\s\"';<>]*)"
)
"""Assignment to a shell variable whose name has one of the `_VARIABLE_SUFFIXES`."""
_SECRET_FLAG_PATTERN = rf"(?i)^--?[\w-]*{_SECRET_NAME_PATTERN}[\w-]*$"

_SECRET_QUERY_NAMES = frozenset(("key", "auth", "authorization", "sig", "signature", "pass", "pw", "pwd", "passphrase"))
"""Last words of names of query parameters that denote secrets; in other names they are ordinary words."""
_SECRET_NAME_SUFFIXES = (
    *("apikey", "accesskey", "secretkey", "privatekey", "password", "passwd", "secret", "token", "credentials"),
)
"""Endings of the names of config fields and of query parameters that denote secrets, in lower case without separators.

Unlike `_VARIABLE_SUFFIXES`, which is for environment variables, they do not include the single word `key`, which is an
ordinary word in configs."""
_SPECIAL_TOKENS = frozenset(f"{name}_token" for name in ("bos", "cls", "eos", "mask", "pad", "sep", "stop", "unk"))
"""Names that end in `token` and do not denote secrets: the special tokens of a tokenizer."""

_NON_SECRET_VALUES = ("", "null", "none", "true", "false", "???")

_OC_ENV_PATTERN = r"oc\.env\s*:\s*(?:[\"']\s*)?(\$\{|[A-Za-z_][A-Za-z0-9_]*)"
_URL_WITH_QUERY_PATTERN = r"(?i)(?:https?|wss?)://[^\s?#;]*[?#;]\S+"
_USERINFO_WITHOUT_SCHEME_PATTERN = r"[^\s/:@=,]+:[^\s/@]+@[A-Za-z0-9.-]+(:\d+)?(/\S*)?"
_VARIABLE_NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
_UPPER_SNAKE_CASE_PATTERN = r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*"

_REMEDY = (
    "Put a key into an environment variable and name that variable in llm.api_key_env, because configs are saved in "
    "files"
)


def register_secret_variable(variable: str) -> None:
    """Treat the value of an environment variable as a secret, regardless of the variable's name."""
    _secret_variables.add(variable)


def get_redaction_environment() -> dict[str, str]:
    """Return the environment variables that child processes need to redact values that configs have read."""
    return {name: os.environ[name] for name in (_RESOLVED_NAMES_VARIABLE,) if name in os.environ}


def _list_resolved_variables() -> list[str]:
    return [name for name in os.environ.get(_RESOLVED_NAMES_VARIABLE, "").split("=") if name]


def register_resolved_variable(variable: str) -> None:
    """Redact the value of an environment variable that a config has read, in this process and its children.

    Existing paths are not redacted, and neither are numbers and booleans with fewer than `MIN_SECRET_LENGTH`
    characters.

    Raises:
        ConfigError: the value is so short that its redaction would damage other texts.
    """
    value = os.environ.get(variable, "").strip()
    is_not_secret = value.lower() in _NON_SECRET_VALUES or is_number(value) or _is_existing_path(value)
    if len(value) < MIN_SECRET_LENGTH and not is_not_secret:
        raise ConfigError(
            f"${{oc.env:{variable}}}: values that a config reads from the environment are redacted in files, and the "
            f"value of {variable} has fewer than {MIN_SECRET_LENGTH} characters, too few to be recognized there. "
            "Write the value itself instead"
        )
    if variable not in (names := _list_resolved_variables()):
        os.environ[_RESOLVED_NAMES_VARIABLE] = "=".join([*names, variable])


def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable of this name counts as a secret."""
    return name in _secret_variables or name.upper().endswith(_VARIABLE_SUFFIXES)


def list_known_secrets(include_resolved: bool = True) -> list[str]:
    """Return the secrets in the environment and their encodings (`_encode_secret`) in lower case, longest first.

    Args:
        include_resolved: whether values that configs have read count as secrets. Such values are redacted, but configs
            that contain them are not rejected.
    """
    encoded_secrets: set[str] = set()
    resolved_variables = _list_resolved_variables() if include_resolved else ()
    for name in {*filter(is_secret_variable, list(os.environ)), *resolved_variables}:
        value = os.environ.get(name, "").strip()
        # The path of a key file is not a secret.
        if len(value) >= MIN_SECRET_LENGTH and not _is_existing_path(value):
            encoded_secrets |= _encode_secret(value)
    return sorted(encoded_secrets, key=len, reverse=True)


@functools.lru_cache(maxsize=256)
def _encode_secret(value: str) -> frozenset[str]:
    """Return the encodings in which a text may contain a secret, in lower case.

    These are the secret itself, its Base64 encodings (at each offset in a longer encoded text, in both alphabets), and
    the URL-quoted and JSON-escaped forms of these.
    """
    secret_bytes, encodings = value.encode("utf-8", "surrogateescape"), {value}
    for offset in range(3):
        # Only the characters, of 6 bits each, that do not depend on the bytes before and after the secret.
        start, stop = -(-8 * offset // 6), (8 * (offset + len(secret_bytes))) // 6
        encoding = base64.b64encode(b"\0" * offset + secret_bytes).decode()[start:stop]
        encodings |= {encoding, encoding.translate(str.maketrans("+/", "-_"))}
    json_forms = {json.dumps(form)[1:-1] for form in encodings} | {form.replace("/", "\\/") for form in encodings}
    return frozenset(form.lower() for form in {*encodings, *json_forms, *(quote(form, safe="") for form in encodings)})


def redact(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return `text` with `<redacted>` in place of secrets in the environment and of strings that look like secrets.

    Secrets in the environment are found in any letter case and in the encodings of `_encode_secret`. Strings that look
    like secrets are keys of well-known services, user names and passwords in URLs, query parameters of URLs that are
    named like a secret, and tokens after `Bearer`. The time is linear in the length of `text`.

    Args:
        text: any text.
        secrets: result of `list_known_secrets`, computed once if many texts are redacted; None: it is called here.
    """
    lower_text = text.lower()
    for secret in list_known_secrets() if secrets is None else secrets:
        if secret in lower_text:
            text = re.sub(re.escape(secret), REDACTED, text, flags=re.IGNORECASE)
            lower_text = text.lower()
    if "://" in text:
        text = re.sub(_URL_USERINFO_PATTERN, rf"\1{REDACTED}@", text)
    if "=" in text and ("?" in text or "&" in text):
        text = re.sub(_QUERY_PARAMETER_PATTERN, _redact_query_parameter, text)
    if "bearer" in lower_text or "authorization" in lower_text:
        text = re.sub(_AUTHORIZATION_PATTERN, _redact_authorization, text)
    if any(
        substring in text and any(prefix in text for prefix in prefixes)
        for substring, prefixes in _KEY_PREFIXES_BY_SUBSTRING.items()
    ):
        text = re.sub(_SERVICE_KEY_PATTERN, REDACTED, text)
    if "k-" in text or "k_" in text:
        text = re.sub(_SK_KEY_PATTERN, _redact_sk_key, text)
    return text


def redact_folder_names(folder: Path) -> Path:
    """Return `folder` with secrets redacted in the names of its parts, except parts that exist."""
    redacted_path = Path()
    for name in folder.parts:
        redacted_path /= name if _exists(redacted_path / name) else redact(name).replace(REDACTED, "redacted")
    return redacted_path


def redact_nested(value: Any, secrets: Sequence[str] | None = None) -> Any:
    """Return a copy of plain data with all strings redacted, including keys of mappings; `secrets` as in `redact`."""
    secrets = list_known_secrets() if secrets is None else secrets
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {redact_nested(key, secrets): redact_nested(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_nested(item, secrets) for item in value]
    return value


def redact_code(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return `redact(text)` with the values assigned to names like `api_key` or `password` redacted as well.

    This is for code, settings and command lines, where such names denote secrets. In prose they are ordinary words.

    Args:
        text: any text.
        secrets: result of `list_known_secrets`, computed once if many texts are redacted; None: it is called here.
    """
    text = redact(text, secrets)
    if "=" in text or ":" in text:
        text = re.sub(_ASSIGNMENT_PATTERN, _redact_assignment, text)
        text = re.sub(_SHELL_ASSIGNMENT_PATTERN, _redact_assignment, text)
    return text


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line with its secrets redacted, including values of separate flags (`--api-key VALUE`)."""
    return [
        REDACTED if i and re.match(_SECRET_FLAG_PATTERN, arguments[i - 1]) else redact_code(argument)
        for i, argument in enumerate(arguments)
    ]


def check_no_secrets(config: Mapping[Any, Any]) -> None:
    """Raise ConfigError if a config (plain data) contains a secret or reads one from an environment variable.

    The message names the field and does not quote the value. Call this before and after interpolations are resolved.
    """
    secrets = list_known_secrets(include_resolved=False)
    for path, name, value in _iter_strings(config, "", secrets):
        if (reason := find_rejection_reason(name, value, secrets)) is not None:
            raise ConfigError(f"{redact(path, secrets)} {reason}")


def check_no_secrets_in_arguments(arguments: Sequence[str]) -> None:
    """Raise ConfigError if a command line contains a secret, because command lines are saved and quoted in messages."""
    secrets = list_known_secrets(include_resolved=False)
    for argument_number, argument in enumerate(arguments, start=1):
        key, equals, value = argument.partition("=")
        key = key.lstrip("+~")
        is_assignment = bool(equals) and redact(key, secrets) == key
        value = value if is_assignment else argument
        for text in {value, value.strip("'\" []{}")}:
            if (reason := find_rejection_reason(key if is_assignment else "", text, secrets)) is not None:
                raise ConfigError(f"{key if is_assignment else f'argument {argument_number}'} {reason}")


def find_rejection_reason(name: str, value: str, secrets: Sequence[str] | None = None) -> str | None:
    """Return the reason why a config may not have a string in a field; None if it may.

    The reason is the predicate of a sentence whose subject is the field, such as `holds what looks like a key`.

    Args:
        name: dotted name of the field.
        value: the string.
        secrets: result of `list_known_secrets(include_resolved=False)`; None: it is called here.
    """
    secrets = list_known_secrets(include_resolved=False) if secrets is None else secrets
    for variable in re.findall(_OC_ENV_PATTERN, value):
        if variable == "${" or is_secret_variable(variable):
            if variable == "${":
                return f"reads an environment variable whose name is itself interpolated. {_REMEDY}"
            return f"reads the environment variable {variable}, which holds a secret. {_REMEDY}"
    field_name = name.rpartition(".")[2]
    if value.lower() in _NON_SECRET_VALUES:
        return None
    if field_name == "api_key_env":
        return find_variable_rejection_reason(value)
    if re.search(_URL_USERINFO_PATTERN, value) or re.fullmatch(_USERINFO_WITHOUT_SCHEME_PATTERN, value):
        return f"holds a URL with a user name or password. {_REMEDY}"
    if any(is_secret_name(unquote(parameter[1])) for parameter in re.findall(_QUERY_PARAMETER_PATTERN, value)):
        return f"holds a URL with what looks like a key among its query parameters. {_REMEDY}"
    if re.fullmatch(_URL_WITH_QUERY_PATTERN, value):
        return f"holds a URL with parameters, a query or a fragment, which may contain secrets. {_REMEDY}"
    is_literal = len(value) >= MIN_SECRET_LENGTH and not value.startswith(("$", "<", "?")) and not is_number(value)
    if redact_code(value, secrets) != value or (is_literal and is_secret_name(field_name, is_query_parameter=False)):
        return f"holds what looks like a key or password. {_REMEDY}"
    return None


def find_variable_rejection_reason(name: str) -> str | None:
    """Return the reason why `name` is rejected as the name of an environment variable with a key; None if accepted.

    The reason never quotes `name`, which may be the key itself.
    """
    if name in os.environ and redact(name) == name:
        return None
    max_part_length = max(map(len, name.split("_")))
    is_random = max_part_length >= 12 and any(c.isdigit() for c in name)
    if not re.fullmatch(_VARIABLE_NAME_PATTERN, name):
        reason = "is not a variable name"
    elif redact(name) != name or max_part_length >= 24 or is_random:
        reason = "looks like a key itself"
    elif not re.fullmatch(_UPPER_SNAKE_CASE_PATTERN, name):
        reason = "is the name of an unset variable and not in capital letters, digits and underscores"
    else:
        return None
    return (
        f"must name the environment variable that holds the key, such as OPENAI_API_KEY, but its value {reason}. "
        "(The value is not repeated here, because it may be the key.)"
    )


def is_secret_name(name: str, is_query_parameter: bool = True) -> bool:
    """Return whether a name denotes a secret, e.g. `api_key` or `X-Auth-Token`.

    With `is_query_parameter`, it is the name of a query parameter of a URL; then `key` and `sig` also denote secrets.
    """
    snake_case_name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    words = [word for word in re.split(r"[^a-z0-9]+", snake_case_name) if word]
    if not words or "_".join(words[-2:]) in _SPECIAL_TOKENS:
        return False
    has_secret_suffix = "".join(words[-2:]).endswith(_SECRET_NAME_SUFFIXES)
    return has_secret_suffix or (is_query_parameter and words[-1] in _SECRET_QUERY_NAMES)


def _iter_strings(value: Any, path: str, secrets: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (path, field name, string) for all strings in plain data and for keys of mappings that contain secrets."""
    if isinstance(value, str):
        yield path, re.sub(r"\[\d+\]", "", path), value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and redact(key, secrets) != key:
                yield f"a key in {path or 'the config'}", "", key
            yield from _iter_strings(item, f"{path}.{key}" if path else str(key), secrets)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _iter_strings(item, f"{path}[{i}]", secrets)


def _redact_query_parameter(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}={REDACTED}" if is_secret_name(unquote(match[2])) else match[0]


def _redact_authorization(match: re.Match[str]) -> str:
    """Redact a token after `Bearer` or `Authorization:`, but not an ordinary word of letters."""
    key = match[2].rstrip(".")
    return f"{match[1]}{REDACTED}" if not key.isalpha() or not (key.islower() or key.istitle()) else match[0]


def _redact_sk_key(match: re.Match[str]) -> str:
    """Redact an `sk-` key, but not a name such as `sk-learn-baseline-v2`.

    Keys contain capital letters or long parts with digits.
    """
    suffix = match[1]
    is_random = any(len(part) >= 10 and any(c.isdigit() for c in part) for part in re.split("[-_]", suffix))
    return REDACTED if is_random or any(c.isupper() for c in suffix) else match[0]


def _redact_assignment(match: re.Match[str]) -> str:
    """Redact an assigned value unless it is a variable name, a reference or a number."""
    name, value = match[1].rstrip("\"' =:"), match[2]
    # Fields such as `api_key_env` and `key_header` contain the location of a key, not the key.
    is_location = name.endswith(("_env", "-env", "_header", "_query"))
    is_not_secret = is_location or name.endswith(tuple(_SPECIAL_TOKENS)) or value.lower() in _NON_SECRET_VALUES
    is_not_secret = is_not_secret or value.startswith(("$", "[")) or is_number(value)
    return match[0] if is_not_secret else f"{match[1]}{REDACTED}"


def _is_existing_path(text: str) -> bool:
    """Return whether `text` is an existing path that begins with `/` or `~`."""
    return text[:1] in ("/", "~") and _exists(Path(text))


def _exists(path: Path) -> bool:
    """Return whether a path exists; False for an invalid path. No exception quotes the path, which may be a secret."""
    try:
        return path.expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # name too long or unreadable folder; unknown user; null character
        return False
