"""mosquitto as Debian packages it, with persistence: it keeps everything in memory, and periodically writes a whole
image; a message is not on the disk when it is confirmed."""

import shutil

from tandemmq.bench.peers.server import HOST, Connected, PeerMissing

SECONDS_BETWEEN_IMAGES = 30


class Mosquitto(Connected):
    """A broker."""

    name = "mosquitto"

    def __init__(self) -> None:
        super().__init__()
        self.ports = {"mqtt": self.port}

    def start(self) -> None:
        program = shutil.which("mosquitto", path="/usr/sbin:/usr/bin")
        if program is None:
            raise PeerMissing("mosquitto is not installed (/usr/sbin/mosquitto)")
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "store").mkdir(exist_ok=True)
        (self.directory / "store").chmod(0o777)  # it runs under another user
        self.directory.chmod(0o755)
        configuration = self.directory / "mosquitto.conf"
        configuration.write_text(
            f"listener {self.port} {HOST}\nallow_anonymous true\n"
            f"persistence true\npersistence_location {self.directory}/store/\n"
            f"autosave_interval {SECONDS_BETWEEN_IMAGES}\n"
            # Otherwise it drops messages beyond these limits.
            "max_inflight_messages 0\nmax_queued_messages 0\n"
        )
        self.spawn([program, "-c", str(configuration)])
