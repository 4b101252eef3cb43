"""A certificate authority for tests, with commands of openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """Creates keys and certificates in a directory with commands of openssl."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.root = directory / f"{name}.pem"
        self.key = directory / f"{name}.key"
        self.config = directory / f"{name}.cnf"
        (directory / f"{name}.index").touch()
        self.config.write_text(
            f"[ca]\ndefault_ca = here\n[here]\ndatabase = {directory}/{name}.index\ndefault_md = sha256\n"
            f"default_crl_days = 30\ncertificate = {self.root}\nprivate_key = {self.key}\n"
        )
        self.openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/O=Example/CN={name}", "-keyout", str(self.key), "-out", str(self.root),
        )  # fmt: skip

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    def certificate(self, name: str, *, at: str = "", password: str | None = None, days: int = 2) -> Path:
        """Create a certificate for 127.0.0.1 with its key in the same file, in the file ``at`` if given; return its
        path."""
        path = self.directory / f"{at or name}.pem"
        request, key, made = (self.directory / f"{name}.{end}" for end in ("csr", "key", "crt"))
        hidden = ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
        self.openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *hidden, "-subj", f"/O=Example/CN={name}",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        self.openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.root), "-CAkey", str(self.key), "-days", str(days),
            "-copy_extensions", "copy", "-out", str(made),
        )  # fmt: skip
        # Replaced like a renewed certificate: a new file in the place of the old one.
        whole = self.directory / f"{name}.whole"
        whole.write_bytes(made.read_bytes() + key.read_bytes())
        whole.rename(path)
        return path

    def revoke(self, name: str) -> None:
        self.openssl("ca", "-config", str(self.config), "-revoke", str(self.directory / f"{name}.crt"))

    def revocations(self, days: int = 30) -> bytes:
        made = self.directory / f"{self.name}.crl"
        self.openssl("ca", "-config", str(self.config), "-gencrl", "-crldays", str(days), "-out", str(made))
        return made.read_bytes()
