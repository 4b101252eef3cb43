"""Options that connect a command to a broker: login and TLS, the same for messages and for the admin server.

They are not arguments of the command: the code that opens a connection calls `credentials` and `tls` here, and gets
the options of the running command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    import ssl

    from tandemmq.client.tls import TlsFiles

Command = TypeVar("Command", bound=Callable[..., Any])

PASSCODE_VARIABLE: Final = "TANDEMMQ_PASSCODE"

_GIVEN: Final = "tandemmq.cli.connect.given"
_CREDENTIALS: Final = "tandemmq.cli.connect.credentials"
_TLS: Final = "tandemmq.cli.connect.tls"


class Login(NamedTuple):
    """User and password of the command. None: without a login, without a password."""

    login: str | None = None
    passcode: str | None = None


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    assert parameter.name is not None, "an option has a name"
    context.meta.setdefault(_GIVEN, {})[parameter.name] = value


def _option(*names: str, **how: Any) -> Callable[[Command], Command]:
    return click.option(*names, expose_value=False, callback=_keep, **how)


def _file(name: str, help: str, variable: str | None = None) -> Callable[[Command], Command]:
    return _option(name, metavar="FILE", type=click.Path(exists=True, dir_okay=False), envvar=variable, help=help)


_LOGIN: Final = (
    _option("--login", metavar="NAME", envvar="TANDEMMQ_LOGIN", help="User name."),
    _option(
        "--passcode",
        metavar="WORD",
        help="Password for --login. Other users of this machine can see it in the process list: prefer "
        f"{PASSCODE_VARIABLE} or --passcode-file. Without a password, the command asks for it on a terminal.",
    ),
    _file("--passcode-file", "File whose first line is the password for --login."),
)
_OF_TLS: Final = (
    _file("--ca-file", "TLS: trusted authorities (PEM). Default: those of the system.", "TANDEMMQ_CA_FILE"),
    _file("--cert", "TLS: client certificate (PEM), if the broker requires one.", "TANDEMMQ_CERT"),
    _file("--key", "TLS: key of the certificate. Default: in the certificate file.", "TANDEMMQ_KEY"),
    _file("--key-password-file", "TLS: file whose first line is the password of the key."),
    _option(
        "--check-host/--no-check-host",
        default=True,
        help="TLS: the broker's certificate must contain the host name.",
    ),
)  # fmt: skip


def connect_options(command: Command) -> Command:
    """Add all of the options to a command."""
    command = tls_options(command)
    for option in reversed(_LOGIN):
        command = option(command)
    return command


def tls_options(command: Command) -> Command:
    """Add the TLS options to a command."""
    for option in reversed(_OF_TLS):
        command = option(command)
    return command


def credentials() -> Login:
    """Return the login of the running command. With --login alone, prompt once for the password on a terminal."""
    context = click.get_current_context(silent=True)
    if context is None:
        return Login()
    found: Login | None = context.meta.get(_CREDENTIALS)
    if found is None:
        found = context.meta[_CREDENTIALS] = _credentials(context.meta.get(_GIVEN, {}))
    return found


def _credentials(given: dict[str, Any]) -> Login:
    login, passcode, path = (given.get(name) for name in ("login", "passcode", "passcode_file"))
    if passcode is not None and path is not None:
        raise click.UsageError("--passcode or --passcode-file, not both")
    if path is not None:
        passcode = _passcode_in(path)
    if login is not None and passcode is None:
        passcode = os.environ.get(PASSCODE_VARIABLE)
        if passcode is None and sys.stdin.isatty():
            passcode = click.prompt(f"Passcode of {login}", hide_input=True, err=True)
    return Login(login, passcode)


def tls() -> ssl.SSLContext:
    """Return the TLS context of the running command. Wrong files end it with exit code 2."""
    from tandemmq.client.errors import TlsError
    from tandemmq.client.tls import tls_context

    context = click.get_current_context(silent=True)
    if context is None:
        return tls_context()
    found: ssl.SSLContext | None = context.meta.get(_TLS)
    if found is None:
        try:
            found = context.meta[_TLS] = tls_files().context()
        except TlsError as error:
            raise click.UsageError(str(error)) from error
    return found


def tls_files() -> TlsFiles:
    """Return the TLS files that the running command was given."""
    from tandemmq.client.tls import TlsFiles

    context = click.get_current_context(silent=True)
    given: dict[str, Any] = {} if context is None else context.meta.get(_GIVEN, {})
    certificate, key, password_file = (given.get(name) for name in ("cert", "key", "key_password_file"))
    if certificate is None and (key is not None or password_file is not None):
        raise click.UsageError("--key and --key-password-file go with --cert")
    return TlsFiles(given.get("ca_file"), certificate, key, password_file, given.get("check_host", True))


def _passcode_in(path: str) -> str:
    from tandemmq.client.tls import first_line

    try:
        return first_line(path)
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
