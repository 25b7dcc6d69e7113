"""Addresses of servers in configs: validation, origin, and whether the server is on this machine."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from llmrl.core.errors import ConfigError

_ADDRESS_PATTERN = r"(?i)https?://(?P<host>\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?(?:/[^\s?#;\\@]*)?"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_origin(address: str, option_name: str) -> str:
    """Return scheme, host and port of an address, in lower case and without the scheme's default port.

    >>> parse_origin("HTTPS://API.example.org:443/v1", "llm.base_url")
    'https://api.example.org'

    Args:
        address: http(s) address without user name, query, parameters and fragment, which could contain a secret.
        option_name: name of the option with the address, for messages.

    Raises:
        ConfigError: `address` is not such an address. The message does not repeat it.
    """
    match = re.fullmatch(_ADDRESS_PATTERN, address)
    if match is None:
        raise ConfigError(
            f"{option_name} must be an address like http://localhost:8000/v1, without user name, query (?...), "
            "parameters (;...) and fragment (#...)"
        )
    parts = urlsplit(address)
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{option_name}: the port must be in 0..65535") from error
    host = match["host"].lower().rstrip(".")
    suffix = "" if port is None or port == _DEFAULT_PORTS[parts.scheme] else f":{port}"
    return f"{parts.scheme}://{host}{suffix}"


def is_loopback(origin: str) -> bool:
    """Return whether an origin (`parse_origin`) is on this machine: `localhost`, 127.0.0.0/8 or ::1."""
    host = urlsplit(origin).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def check_transport_security(address: str, allows_plain_http: bool, option_name: str) -> None:
    """Raise ConfigError for an invalid address, or for plain HTTP to another machine unless `allows_plain_http`.

    Args:
        address, option_name: arguments of `parse_origin`.
        allows_plain_http: value of the option `plain_http` of the same config node.
    """
    origin = parse_origin(address, option_name)
    if origin.startswith("http:") and not allows_plain_http and not is_loopback(origin):
        plain_http_option = f"{option_name.rpartition('.')[0]}.plain_http"
        raise ConfigError(
            f"{option_name}={origin}/...: prompts and key would cross the network unencrypted; use https://, or set "
            f"{plain_http_option}=true"
        )
