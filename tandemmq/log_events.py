"""The names of what the log tells and operators act on, and what each means.

A name stays what it is when the words of its line change: alerts and searches go by it. It is the field ``event`` of
lines in logfmt and JSON. Who logs passes it: ``log.warning("…", extra=log_events.LOCK_LOST)``. docs/logging.md is
printed from here. Imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Each name, and what it means; in the order of the page.
MEANINGS: dict[str, str] = {}


def _event(name: str, meaning: str) -> Mapping[str, object]:
    assert name not in MEANINGS, "each name is given once"
    MEANINGS[name] = meaning
    return {"event": name}


STARTED: Final = _event("started", "The broker begins: name, version, process id, store.")
ENDED: Final = _event("ended", "It ended in order.")
ENDED_BY_FAILURE: Final = _event("ended-by-failure", "It ends, and the line says what has to be mended.")
STOP_ASKED: Final = _event("stop-asked", "SIGTERM or SIGINT came.")
UNSAFE: Final = _event("unsafe", "Something was set, or found, that is known to be unsafe; said at each start.")

ROLE_CHANGED: Final = _event("role-changed", "It is standby, or master, or on its way from one to the other.")
DEMOTED: Final = _event(
    "demoted", "A failure ended its mastership or its promotion; troubleshooting.md has each failure."
)
DEPOSED: Final = _event("deposed", "The same: another broker has begun an epoch of its own.")
LOCK_LOST: Final = _event("lock-lost", "The same: the lock is another's, or could not be confirmed for too long.")
STORE_FAILED: Final = _event("store-failed", "The same: the volume failed, hangs or is full, or the store is damaged.")
LOCK_SILENT: Final = _event("lock-silent", "The lock does not answer, or refuses; it is asked again.")
LOCK_NOT_RELEASED: Final = _event("lock-not-released", "The lock was let go and did not answer: it may be held yet.")
HOLDER_SILENT: Final = _event("holder-silent", "The master holds the lock and shows no life: nobody serves.")
HOLDER_HEARD: Final = _event("holder-heard", "It does again.")
LOOP_HUNG: Final = _event("loop-hung", "The event loop hung: clients are cut off and the lock is let go.")
VOLUME_HANGS: Final = _event("volume-hangs", "A call to the volume does not come back.")
STANDBY_WAITS: Final = _event("standby-waits", "A standby cannot follow the journal for now.")

DISK_FULL: Final = _event("disk-full", "Free space is below the reserve: producers wait or are refused.")
DISK_HAS_ROOM: Final = _event("disk-has-room", "There is space again.")
DAMAGE_STEPPED_OVER: Final = _event("damage-stepped-over", "A part of the journal cannot be read, and was left out.")
JOURNAL_DAMAGED: Final = _event("journal-damaged", "Bytes of a sealed journal file do not verify; said once.")
BATCH_REPAIRED: Final = _event("batch-repaired", "Damaged bytes were written again by the copy of another node.")
MESSAGE_DAMAGED: Final = _event("message-damaged", "A message cannot be read, and is given to nobody.")
ARCHIVE_FAILED: Final = _event("archive-failed", "Journal files cannot be archived, and are kept.")
INDEX_SET_ASIDE: Final = _event("index-set-aside", "An index could not be trusted; it is made anew.")

LOGIN_FAILED: Final = _event("login-failed", "A name or password was wrong.")
LOGIN_THROTTLED: Final = _event("login-throttled", "Too many failed: a login was refused unread.")
DIRECTORY_FAILED: Final = _event("directory-failed", "The directory of users (LDAP) does not answer.")
DENIED: Final = _event("denied", "Somebody was refused something for want of rights; the same once a minute.")
TLS_FAILED: Final = _event("tls-failed", "A client could not be agreed with on TLS.")
WEBSOCKET_REFUSED: Final = _event(
    "websocket-refused", "A client could not be agreed with on WebSocket: a foreign site, or no such request."
)

TOO_MANY_CONNECTIONS: Final = _event("too-many-connections", "A connection was refused, or hung up on to make room.")
CONSUMER_CUT_OFF: Final = _event("consumer-cut-off", "A slow consumer was ended, by its slow_consumer_strategy.")
CLIENT_DOES_NOT_READ: Final = _event("client-does-not-read", "A client was hung up on with too much unread.")
PRODUCER_BLOCKED: Final = _event("producer-blocked", "A producer waits for room; the line says for which limit.")
MEMORY_HELD: Final = _event(
    "memory-held", "A client holds more memory than is left, and gets nothing until it acknowledges."
)
MQTT_RETAINED_FULL: Final = _event(
    "mqtt-retained-full", "Retained messages fill their room: new ones are sent, and not kept."
)
PAUSED: Final = _event("paused", "A queue is paused in a new term, as it was in the former one.")
PAUSES_UNREADABLE: Final = _event("pauses-unreadable", "What is kept of paused queues cannot be read or written.")
MQTT_RETAINED_LOST: Final = _event("mqtt-retained-lost", "The queue of retained messages cannot be read.")
MQTT_SESSION_UNREADABLE: Final = _event("mqtt-session-unreadable", "What is stored of an MQTT session cannot be read.")
MQTT_WILL_REFUSED: Final = _event("mqtt-will-refused", "The will of an MQTT client is not published: why.")
LOOP_BUSY: Final = _event("loop-busy", "What one client sent took the event loop long.")

BRIDGE_CONNECTED: Final = _event("bridge-connected", "A bridge reached the other broker.")
BRIDGE_FAILED: Final = _event("bridge-failed", "A bridge did not, or was cut off; it tries again.")
BRIDGE_REFUSED: Final = _event("bridge-refused", "A message of a bridge was refused for good, here or there.")
BRIDGE_CIRCLE: Final = _event("bridge-circle", "Messages come to a bridge again, over others; they go no further.")
BRIDGE_LEFT: Final = _event("bridge-left", "No bridge has a durable subscription any more that one had; it gathers.")
BRIDGE_TOPIC_ENDED: Final = _event("bridge-topic-ended", "A bridge has a topic no more: what waited there is deleted.")

SETTINGS_READ: Final = _event("settings-read", "SIGHUP came: settings, users and certificates are read again.")
SETTING_CHANGED: Final = _event("setting-changed", "A setting has another value from now on.")
RESTART_NEEDED: Final = _event("restart-needed", "A setting was changed that holds from the next start only.")
SETTINGS_REFUSED: Final = _event("settings-refused", "What was read again is wrong: the settings stay as they were.")
USERS_READ: Final = _event("users-read", "The file of users was read again.")
USERS_REFUSED: Final = _event("users-refused", "It is wrong: users stay as they were.")
CERTIFICATE_READ: Final = _event("certificate-read", "Certificate and key were read again.")
CERTIFICATE_REFUSED: Final = _event("certificate-refused", "They are wrong: TLS stays as it was.")
CERTIFICATE_EXPIRES: Final = _event(
    "certificate-expires", "A certificate or a revocation list expired, or soon does; said at the start, and daily."
)
LOG_LEVEL_SET: Final = _event("log-level-set", "Somebody set the level of a logger: which, and who.")
LINES_DROPPED: Final = _event("log-lines-dropped", "Lines were lost: what takes them was too slow, or failed.")
