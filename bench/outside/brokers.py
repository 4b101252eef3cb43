"""Start brokers for Java tests (java/shadow), each in its own process.

``python -m tandemmq.bench.outside.brokers PORT KIND DIRECTORY [COMMAND…]`` listens on that port of 127.0.0.1.
A connection's first line describes a broker; the answer is ``yes`` or ``no REASON``. It is stopped in order by
``stop``, and killed when the connection ends. KIND ``tandemmq`` is forked from here, with everything imported; else
COMMAND is run with the description as its last argument, and answers in the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

from tandemmq.bench.outside import settings
from tandemmq.bench.outside.settings import NoSetting
from tandemmq.broker.run import run_broker
from tandemmq.config.errors import SettingsError
from tandemmq.config.load import Flags, load


def main() -> None:
    port, kind, directory, *command = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        print("listening", flush=True)
        while True:
            line, _ = listener.accept()
            if os.fork():
                line.close()
                continue
            listener.close()
            try:
                _serve(line, kind, Path(directory), command)
            except BaseException:
                traceback.print_exc()
            os._exit(1)


def _serve(line: socket.socket, kind: str, directory: Path, command: list[str]) -> None:
    asked = line.makefile("r")
    facts = json.loads(asked.readline())
    own = Path(facts["directory"])
    if facts["deletes"] or not facts["persistent"]:
        shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True, exist_ok=True)
    if kind != "tandemmq":
        description = own / "description.json"
        description.write_text(json.dumps(facts))
        os.dup2(line.fileno(), 0)
        os.dup2(line.fileno(), 1)
        os.execvp(command[0], [*command, str(description)])
    try:
        loaded = load(str(settings.write(facts, own)), None, (), Flags(None, None, None, None, "off"))
    except (NoSetting, SettingsError) as error:
        reason = str(error) if isinstance(error, SettingsError) else f"no setting for {error}"
        line.sendall(f"no {' '.join(reason.split())}\n".encode())
        return
    threading.Thread(target=_end_as_asked, args=(asked,), daemon=True).start()
    line.sendall(b"yes\n")
    run_broker(loaded)
    os._exit(0)


def _end_as_asked(asked: object) -> None:
    with contextlib.suppress(OSError):
        if asked.readline() == "stop\n":  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)
            return
    os._exit(0)


if __name__ == "__main__":
    main()
