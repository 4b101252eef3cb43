"""Secrets of [replication]: from the settings, or from the first line of a file that they name."""

from __future__ import annotations

from tandemmq.config.errors import SettingsError
from tandemmq.config.replication import ReplicationSettings


def security_token(table: ReplicationSettings) -> str:
    """Return the secret of the members; "": there is none. Raises SettingsError when its file cannot be read."""
    return _secret("security_token", table.security_token, table.security_token_file)


def zk_password(table: ReplicationSettings) -> str:
    """Return the credentials for ZooKeeper; "": there are none. Raises SettingsError when its file cannot be read."""
    return _secret("zk_password", table.zk_password, table.zk_password_file)


def _secret(key: str, value: str, path: str | None) -> str:
    if path is None:
        return value
    try:
        with open(path, encoding="utf-8") as file:
            secret = file.readline().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SettingsError(f"replication.{key}_file", path, f"a file that can be read: {reason}") from error
    if not secret:
        raise SettingsError(f"replication.{key}_file", path, "a file whose first line is the secret: it is empty")
    return secret
