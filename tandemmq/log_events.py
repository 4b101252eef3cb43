"""Names of log events that operators act on, and their meanings.

A name does not change when the words of its line do: alerts and searches use it. It is the field ``event`` of lines in
logfmt and JSON. The caller passes it: ``log.warning("…", extra=log_events.LOCK_LOST)``. docs/logging.md is generated
from this module. It imports no other module of the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Meaning of each name, in the order of the page.
MEANINGS: dict[str, str] = {}


def _event(name: str, meaning: str) -> Mapping[str, object]:
    assert name not in MEANINGS, "each name is given once"
    MEANINGS[name] = meaning
    return {"event": name}


STARTED: Final = _event("started", "The broker starts: name, version, process id, store.")
ENDED: Final = _event("ended", "The broker stopped normally.")
ENDED_BY_FAILURE: Final = _event(
    "ended-by-failure", "The broker stops because of a failure; the line states what to repair."
)
STOP_ASKED: Final = _event("stop-asked", "SIGTERM or SIGINT was received.")
UNSAFE: Final = _event("unsafe", "A setting or the environment is known to be unsafe; logged at each start.")

ROLE_CHANGED: Final = _event("role-changed", "The role changes: standby, master, or a transition between them.")
DEMOTED: Final = _event(
    "demoted", "The broker stopped being master, or could not become it, because of a failure (troubleshooting.md)."
)
DEPOSED: Final = _event("deposed", "Demoted: another broker has begun a newer epoch.")
LOCK_LOST: Final = _event("lock-lost", "Demoted: another broker has the lock, or the lock was not confirmed in time.")
STORE_FAILED: Final = _event("store-failed", "Demoted: the volume failed, hangs or is full, or the store is damaged.")
LOCK_SILENT: Final = _event("lock-silent", "The lock does not answer, or refuses; the broker tries again.")
LOCK_NOT_RELEASED: Final = _event(
    "lock-not-released", "The release of the lock was not answered: the lock may still be held."
)
HOLDER_SILENT: Final = _event("holder-silent", "The master holds the lock but shows no sign of life: no broker serves.")
HOLDER_HEARD: Final = _event("holder-heard", "The master shows signs of life again.")
LOOP_HUNG: Final = _event("loop-hung", "The event loop hung: clients are disconnected and the lock is released.")
VOLUME_HANGS: Final = _event("volume-hangs", "A call to the volume does not return.")
STANDBY_WAITS: Final = _event("standby-waits", "A standby cannot follow the journal at the moment.")

DISK_FULL: Final = _event("disk-full", "Free space is below the reserve: producers wait or are refused.")
DISK_HAS_ROOM: Final = _event("disk-has-room", "There is enough free space again.")
DAMAGE_STEPPED_OVER: Final = _event("damage-stepped-over", "A part of the journal is unreadable and was skipped.")
JOURNAL_DAMAGED: Final = _event("journal-damaged", "A checksum of a sealed journal file is wrong; logged once.")
BATCH_REPAIRED: Final = _event("batch-repaired", "Damaged bytes were replaced from the copy of another node.")
MESSAGE_DAMAGED: Final = _event("message-damaged", "A message is unreadable and is not delivered.")
ARCHIVE_FAILED: Final = _event("archive-failed", "Journal files cannot be archived and are kept.")
INDEX_SET_ASIDE: Final = _event("index-set-aside", "An index was not trustworthy; it is rebuilt.")

LOGIN_FAILED: Final = _event("login-failed", "Wrong user name or password.")
LOGIN_THROTTLED: Final = _event("login-throttled", "Too many logins failed: a login was refused without a check.")
DIRECTORY_FAILED: Final = _event("directory-failed", "The user directory (LDAP) does not answer.")
DENIED: Final = _event(
    "denied", "An action was refused because of missing rights; the same one is logged once a minute."
)
TLS_FAILED: Final = _event("tls-failed", "The TLS handshake with a client failed.")
WEBSOCKET_REFUSED: Final = _event(
    "websocket-refused", "The WebSocket handshake with a client failed: a foreign site, or an invalid request."
)

TOO_MANY_CONNECTIONS: Final = _event("too-many-connections", "A connection was refused, or closed to make room.")
CONSUMER_CUT_OFF: Final = _event("consumer-cut-off", "A slow consumer was removed by its slow_consumer_strategy.")
CLIENT_DOES_NOT_READ: Final = _event(
    "client-does-not-read", "A client was disconnected because too much output was unread."
)
PRODUCER_BLOCKED: Final = _event("producer-blocked", "A producer waits for room; the line names the limit.")
MEMORY_HELD: Final = _event(
    "memory-held", "A client holds more memory than is left; it receives nothing until it acknowledges."
)
MQTT_RETAINED_FULL: Final = _event(
    "mqtt-retained-full", "Retained messages reached their limit: new ones are sent, but not retained."
)
PAUSED: Final = _event("paused", "A queue is still paused after a change of masters.")
PAUSES_UNREADABLE: Final = _event("pauses-unreadable", "The list of paused queues cannot be read or written.")
MQTT_RETAINED_LOST: Final = _event("mqtt-retained-lost", "The queue of retained messages cannot be read.")
MQTT_SESSION_UNREADABLE: Final = _event("mqtt-session-unreadable", "A stored MQTT session cannot be read.")
MQTT_WILL_REFUSED: Final = _event(
    "mqtt-will-refused", "The will of an MQTT client is not published; the line gives the reason."
)
LOOP_BUSY: Final = _event("loop-busy", "A command of one client kept the event loop busy for long.")

BRIDGE_CONNECTED: Final = _event("bridge-connected", "A bridge connected to the other broker.")
BRIDGE_FAILED: Final = _event("bridge-failed", "A bridge could not connect, or lost its connection; it tries again.")
BRIDGE_REFUSED: Final = _event(
    "bridge-refused", "A message of a bridge was finally refused, here or by the other broker."
)
BRIDGE_CIRCLE: Final = _event(
    "bridge-circle", "A message returned to a bridge through other bridges; it is not forwarded."
)
BRIDGE_LEFT: Final = _event(
    "bridge-left", "A durable subscription belongs to no bridge any more; its messages accumulate."
)
BRIDGE_TOPIC_ENDED: Final = _event(
    "bridge-topic-ended", "A topic was removed from a bridge: its waiting messages are deleted."
)

SETTINGS_READ: Final = _event("settings-read", "SIGHUP was received: settings, users and certificates are read again.")
SETTING_CHANGED: Final = _event("setting-changed", "A setting has a new value now.")
RESTART_NEEDED: Final = _event("restart-needed", "A changed setting takes effect at the next start.")
SETTINGS_REFUSED: Final = _event("settings-refused", "The new settings are wrong: the old ones stay.")
USERS_READ: Final = _event("users-read", "The file of users was read again.")
USERS_REFUSED: Final = _event("users-refused", "The file of users is wrong: the old users stay.")
CERTIFICATE_READ: Final = _event("certificate-read", "Certificate and key were read again.")
CERTIFICATE_REFUSED: Final = _event("certificate-refused", "Certificate or key are wrong: the old ones stay.")
CERTIFICATE_EXPIRES: Final = _event(
    "certificate-expires", "A certificate or a revocation list has expired or expires soon; logged at start and daily."
)
LOG_LEVEL_SET: Final = _event("log-level-set", "The level of a logger was set; the line names logger and address.")
LINES_DROPPED: Final = _event("log-lines-dropped", "Log lines were lost because their target was too slow or failed.")
