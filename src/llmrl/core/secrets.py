"""Recognition of keys and passwords, their redaction in texts, and the refusal of configs that hold one.

Everything that a run writes or prints passes `redact`. A config that holds a literal secret is refused before a run is
composed from it (`refuse`), because configs are saved, hashed and used in names of files.
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

MARK = "<redacted>"
SHORTEST = 8
"""Least number of characters of a variable's value that counts as a secret, so that `none` and `true` do not."""

_SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS")
_secret_variables: set[str] = set()
_RESOLVED = "LLMRL_RESOLVED_VARIABLES"
"""Environment variable with the names of the variables that configs have read, separated by `=`, which no name
contains. Child processes inherit it."""

_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
"""Start of a word, also after an escaped line break in JSON."""
_PREFIXES = {
    "_": ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "gsk_", "r8_"),
    "-": ("glpat-", "xox", "nvapi-", "KEY-"),
    "A": ("AIza", "AKIA", "ASIA"),
    "eyJ": ("eyJ",),
}
"""Substring -> prefixes of keys that contain it. Most texts have few of the substrings, which saves searches."""
_FORMS = (
    rf"{_START}(?:"
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|gsk_[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{20,}|nvapi-[A-Za-z0-9_-]{20,}"
    r"|AIza[A-Za-z0-9_-]{30,}|A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{0,10000}"
    r")"
)
"""Keys of Hugging Face, GitHub, GitLab, Slack, Groq, Replicate, NVIDIA, Google and AWS, JSON web tokens, PEM files."""
_SK = rf"{_START}[spr]k[-_]([A-Za-z0-9_-]{{12,}})"
_USER = r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/?#\"'<>\\]{1,300}@"
_PARAMETER = r"([?&](?:amp;)?)([A-Za-z0-9_.%~\[\]-]{1,64})(=)([^&\s\"'`#<>\\]+)"
_BEARER = (
    rf"(?i){_START}(bearer\s{{1,3}}|authorization[\"']?\s{{0,3}}[:=]\s{{0,3}}[\"']?(?:basic|token)\s{{1,3}})"
    r"([\w.~+/=-]{6,})"
)
_NAME = r"(?:api[_-]?key|access[_-]?key|secret|password|passwd|credential|(?<![a-z])token)(?![a-z])"
_ASSIGNMENT = (
    rf"(?i)((?<![\w.-])[\w.-]{{0,64}}{_NAME}[\w.-]{{0,32}}[\"']?\s{{0,3}}[=:]\s{{0,3}}[\"']?)([^\s\"',<>{{}}]+)"
)
_EXPORTED = (
    r"(\b[A-Z][A-Z0-9_]{0,64}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)=[\"']?)([^\s\"'$;<>][^\s\"';<>]*)"
)
"""Assignments in a shell."""
_FLAG = rf"(?i)^--?[\w-]*{_NAME}[\w-]*$"

_IN_ADDRESS = frozenset(("key", "auth", "authorization", "sig", "signature", "pass", "pw", "pwd", "passphrase"))
"""Last words of names that mean secrets among the parameters of an address; elsewhere they are ordinary words."""
_WORDS = ("apikey", "accesskey", "secretkey", "privatekey", "password", "passwd", "secret", "token", "credentials")
_NO_SECRET_TOKENS = frozenset(f"{name}_token" for name in ("bos", "cls", "eos", "mask", "pad", "sep", "stop", "unk"))

_EMPTY_VALUES = ("", "null", "none", "true", "false", "???")

_ENVIRONMENT = r"oc\.env\s*:\s*(?:[\"']\s*)?(\$\{|[A-Za-z_][A-Za-z0-9_]*)"
_QUERY = r"(?i)(?:https?|wss?)://[^\s?#;]*[?#;]\S+"
_NO_SCHEME = r"[^\s/:@=,]+:[^\s/@]+@[A-Za-z0-9.-]+(:\d+)?(/\S*)?"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_CONVENTIONAL = r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*"

_REMEDY = (
    "Put a key into an environment variable and name that variable in llm.api_key_env (how the server gets it: "
    "llm.api_key_header, llm.api_key_query), because configs are saved in files"
)


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    """Return a compiled pattern. Compiled on first use, because every command imports this module."""
    return re.compile(text)


def protect(variable: str) -> None:
    """Treat the value of an environment variable as a secret, whatever the name of the variable."""
    _secret_variables.add(variable)


def redaction_environment() -> dict[str, str]:
    """Return the environment variables that child processes need to redact what configs have read."""
    return {_RESOLVED: os.environ[_RESOLVED]} if _RESOLVED in os.environ else {}


def _resolved() -> list[str]:
    return [name for name in os.environ.get(_RESOLVED, "").split("=") if name]


def protect_resolved(variable: str) -> None:
    """Redact the value of an environment variable that a config has read, here and in child processes.

    Paths that exist are not redacted, nor numbers and booleans of fewer than `SHORTEST` characters.

    Raises:
        ConfigError: the value is too short to be redacted without damage to other texts.
    """
    value = os.environ.get(variable, "").strip()
    harmless = value.lower() in _EMPTY_VALUES or is_number(value) or _is_existing_path(value)
    if len(value) < SHORTEST and not harmless:
        raise ConfigError(
            f"${{oc.env:{variable}}}: values that a config reads from the environment are redacted in files, and the "
            f"value of {variable} has fewer than {SHORTEST} characters, too few to be recognized there. "
            "Write the value itself instead"
        )
    if variable not in (names := _resolved()):
        os.environ[_RESOLVED] = "=".join([*names, variable])


def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable of this name counts as a secret."""
    return name in _secret_variables or name.upper().endswith(_SECRET_ENDINGS)


def known(resolved: bool = True) -> list[str]:
    """Return the secrets in the environment in lower case, longest first, also in other encodings (`_forms`).

    Args:
        resolved: whether values that configs have read count as secrets. They are redacted, and not refused.
    """
    forms: set[str] = set()
    for name in {*filter(is_secret_variable, list(os.environ)), *(_resolved() if resolved else ())}:
        value = os.environ.get(name, "").strip()
        # A variable that holds the path of a key file is no secret.
        if len(value) >= SHORTEST and not _is_existing_path(value):
            forms |= _forms(value)
    return sorted(forms, key=len, reverse=True)


@functools.lru_cache(maxsize=256)
def _forms(value: str) -> frozenset[str]:
    """Return the lower-case forms in which a text may repeat a secret.

    These are the secret itself, Base64 (of any text around it, in both alphabets), URL-quoted and JSON-escaped.
    """
    data, forms = value.encode("utf-8", "surrogateescape"), {value}
    for offset in range(3):
        # The characters that depend on the secret alone, whatever is encoded before and after it.
        first, end = -(-8 * offset // 6), (8 * (offset + len(data))) // 6
        encoding = base64.b64encode(b"\0" * offset + data).decode()[first:end]
        forms |= {encoding, encoding.translate(str.maketrans("+/", "-_"))}
    escaped = {json.dumps(form)[1:-1] for form in forms} | {form.replace("/", "\\/") for form in forms}
    return frozenset(form.lower() for form in {*forms, *escaped, *(quote(form, safe="") for form in forms)})


def redact(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return `text` with `<redacted>` in place of secrets in the environment and of texts that look like a secret.

    The former are found in any letter case and in Base64. The latter are keys of well-known services, user names and
    passwords in addresses, parameters of addresses that are named like a secret, and `Bearer ...`. Takes time linear
    in the length of `text`.

    Args:
        text: any text.
        secrets: result of `known`, to save calls when many texts are redacted; None: call it.
    """
    lower = text.lower()
    for secret in known() if secrets is None else secrets:
        if secret in lower:
            text = re.sub(re.escape(secret), MARK, text, flags=re.IGNORECASE)
            lower = text.lower()
    if "://" in text:
        text = _pattern(_USER).sub(rf"\1{MARK}@", text)
    if "=" in text and ("?" in text or "&" in text):
        text = _pattern(_PARAMETER).sub(_parameter, text)
    if "bearer" in lower or "authorization" in lower:
        text = _pattern(_BEARER).sub(_bearer, text)
    if any(sign in text and any(prefix in text for prefix in prefixes) for sign, prefixes in _PREFIXES.items()):
        text = _pattern(_FORMS).sub(MARK, text)
    if "k-" in text or "k_" in text:
        text = _pattern(_SK).sub(_sk, text)
    return text


def redacted_folder(folder: Path) -> Path:
    """Return a folder whose names hold no secrets; existing folders keep theirs, such as a user's `/home/<user>`."""
    place = Path()
    for name in folder.parts:
        exists = (place / name).expanduser().exists()
        place /= name if exists else redact(name).replace(MARK, "redacted")
    return place


def redact_all(value: Any, secrets: Sequence[str] | None = None) -> Any:
    """Return a copy of plain data with all texts redacted, keys of mappings included; `secrets` as in `redact`."""
    secrets = known() if secrets is None else secrets
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {redact_all(key, secrets): redact_all(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(item, secrets) for item in value]
    return value


def redact_code(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return `text` as `redact` does, also without the values assigned to names like `api_key` or `password`.

    For code, settings and command lines, where such names mean secrets. In prose, `secret` is an ordinary word.

    Args:
        text: any text.
        secrets: result of `known`, to save calls when many texts are redacted; None: call it.
    """
    text = redact(text, secrets)
    if "=" in text or ":" in text:
        text = _pattern(_EXPORTED).sub(_redact_assignment, _pattern(_ASSIGNMENT).sub(_redact_assignment, text))
    return text


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line with redacted secrets, also where flag and value are separate (`--api-key VALUE`)."""
    return [
        MARK if i and _pattern(_FLAG).match(arguments[i - 1]) else redact_code(argument)
        for i, argument in enumerate(arguments)
    ]


def refuse(config: Mapping[Any, Any]) -> None:
    """Raise ConfigError if a config (plain data) holds a secret or reads one from an environment variable.

    The message names the field, not the value. Call it before and after interpolations are resolved.
    """
    secrets = known(resolved=False)
    for path, name, value in _texts(config, "", secrets):
        if (wrong := fault(name, value, secrets)) is not None:
            raise ConfigError(f"{redact(path, secrets)} {wrong}")


def refuse_arguments(arguments: Sequence[str]) -> None:
    """Raise ConfigError if a command line holds a secret, because command lines are saved and quoted in messages."""
    secrets = known(resolved=False)
    for number, argument in enumerate(arguments, start=1):
        key, equals, value = argument.partition("=")
        key = key.lstrip("+~")
        plain = bool(equals) and redact(key, secrets) == key
        value = value if plain else argument
        for text in {value, value.strip("'\" []{}")}:
            if (wrong := fault(key if plain else "", text, secrets)) is not None:
                raise ConfigError(f"{key if plain else f'argument {number}'} {wrong}")


def fault(name: str, value: str, secrets: Sequence[str] | None = None) -> str | None:
    """Return why the text `value` of the config's field `name` (dotted) is refused, in words that follow the name.

    None means that it is accepted. `secrets` is as in `redact`; if it is None, `known(resolved=False)` is used.
    """
    secrets = known(resolved=False) if secrets is None else secrets
    for variable in _pattern(_ENVIRONMENT).findall(value):
        if variable == "${" or is_secret_variable(variable):
            variable_text = "whose name is not plain" if variable == "${" else f"{variable}, which holds a secret"
            return f"reads the environment variable {variable_text}. {_REMEDY}"
    last = name.rpartition(".")[2]
    if value.lower() in _EMPTY_VALUES:
        return None
    if last == "api_key_env":
        return variable_fault(value)
    if _pattern(_USER).search(value) or _pattern(_NO_SCHEME).fullmatch(value):
        return f"holds a user name or password in an address. {_REMEDY}"
    if any(names_secret(unquote(parameter[1])) for parameter in _pattern(_PARAMETER).findall(value)):
        return f"holds an address with what looks like a key among its parameters. {_REMEDY}"
    if _pattern(_QUERY).fullmatch(value):
        return f"holds an address with a query, parameters or a fragment, which may be secrets. {_REMEDY}"
    literal = len(value) >= SHORTEST and not value.startswith(("$", "<", "?")) and not is_number(value)
    if redact_code(value, secrets) != value or (literal and names_secret(last, False)):
        return f"holds what looks like a key or password. {_REMEDY}"
    return None


def variable_fault(name: str) -> str | None:
    """Return why `name` is refused as the name of an environment variable with a key; None: it is accepted.

    The text never quotes `name`, which may be the key itself.
    """
    if name in os.environ and redact(name) == name:
        return None
    letters = max(map(len, name.split("_")))
    random = letters >= 12 and any(c.isdigit() for c in name)
    if not _pattern(_VARIABLE).fullmatch(name):
        wrong = "is no name of a variable"
    elif redact(name) != name or letters >= 24 or random:
        wrong = "looks like a key itself"
    elif not _pattern(_CONVENTIONAL).fullmatch(name):
        wrong = "is not set, and not spelled like a variable (capital letters, digits, underscores)"
    else:
        return None
    return (
        f"must name the environment variable that holds the key, such as OPENAI_API_KEY, but its value {wrong}. "
        "(The value is not repeated here, because it may be the key.)"
    )


def names_secret(name: str, in_address: bool = True) -> bool:
    """Return whether a name means a secret, e.g. `api_key`, `X-Auth-Token`; in an address also `key` and `sig`."""
    spelled = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    words = [word for word in re.split(r"[^a-z0-9]+", spelled) if word]
    if not words or "_".join(words[-2:]) in _NO_SECRET_TOKENS:
        return False
    return "".join(words[-2:]).endswith(_WORDS) or (in_address and words[-1] in _IN_ADDRESS)


def _texts(value: Any, path: str, secrets: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (path, name of the field, text) of all texts in plain data, and of keys of mappings that are secrets."""
    if isinstance(value, str):
        yield path, re.sub(r"\[\d+\]", "", path), value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and redact(key, secrets) != key:
                yield f"a key in {path or 'the config'}", "", key
            yield from _texts(item, f"{path}.{key}" if path else str(key), secrets)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _texts(item, f"{path}[{i}]", secrets)


def _parameter(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}={MARK}" if names_secret(unquote(match[2])) else match[0]


def _bearer(match: re.Match[str]) -> str:
    """Redact a token after `Bearer`, but not a plain word: tokens have other characters than letters."""
    key = match[2].rstrip(".")
    return f"{match[1]}{MARK}" if not key.isalpha() or not (key.islower() or key.istitle()) else match[0]


def _sk(match: re.Match[str]) -> str:
    """Redact an `sk-` key, but not a name such as `sk-learn-baseline-v2`.

    Keys have capitals or long parts with digits.
    """
    rest = match[1]
    is_random = any(len(part) >= 10 and any(c.isdigit() for c in part) for part in re.split("[-_]", rest))
    return MARK if is_random or any(c.isupper() for c in rest) else match[0]


def _redact_assignment(match: re.Match[str]) -> str:
    """Redact an assigned value unless it is the name of a variable, a reference or a number."""
    name, value = match[1].rstrip("\"' =:"), match[2]
    # `api_key_env` and `api_key_header: api-key` only say where a key is.
    is_harmless = name.endswith(("_env", "-env", "_header", "_query")) or name.endswith(tuple(_NO_SECRET_TOKENS))
    is_harmless = is_harmless or value.startswith(("$", "[")) or is_number(value) or value.lower() in _EMPTY_VALUES
    return match[0] if is_harmless else f"{match[1]}{MARK}"


def _is_existing_path(text: str) -> bool:
    """Return whether `text` is an existing path on this machine that begins with `/` or `~`."""
    return text[:1] in ("/", "~") and Path(text).expanduser().exists()
