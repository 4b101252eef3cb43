"""An OpenLDAP server for tests, Debian's package `slapd`, with two users and three groups. Reading needs a bind."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.services.server_process import ServerProcess

SLAPD = shutil.which("slapd") or "/usr/sbin/slapd"
SCHEMA = Path("/etc/ldap/schema")
MODULES = Path("/usr/lib/ldap")
WANT = f"no OpenLDAP in {SLAPD}: the Debian package slapd"
BASE = "dc=example,dc=org"
ROOT = f"cn=root,{BASE}"
ROOT_PASSWORD = "root-pass"
ANSWER_SECONDS_MAX = 1.0

_SETTINGS = """
include {schema}/core.schema
include {schema}/cosine.schema
include {schema}/inetorgperson.schema
modulepath {modules}
moduleload back_mdb
pidfile {directory}/slapd.pid
allow bind_anon_cred bind_anon_dn
database mdb
maxsize 10485760
suffix "{base}"
rootdn "{root}"
rootpw {password}
directory {directory}/data
access to attrs=userPassword by anonymous auth by * none
access to * by users read by * none
"""

_PEOPLE = """
dn: {base}
objectClass: domain
dc: example

dn: ou=people,{base}
objectClass: organizationalUnit
ou: people

dn: ou=groups,{base}
objectClass: organizationalUnit
ou: groups

dn: uid=dora,ou=people,{base}
objectClass: inetOrgPerson
uid: dora
cn: Dora (the first), O\\C
sn: Dora
userPassword: d-pass

dn: uid=emil,ou=people,{base}
objectClass: inetOrgPerson
uid: emil
cn: Emil
sn: Emil
userPassword: e-pass

dn: cn=ops,ou=groups,{base}
objectClass: groupOfNames
cn: ops
member: uid=dora,ou=people,{base}

dn: cn=shops,ou=groups,{base}
objectClass: groupOfNames
cn: shops
member: uid=dora,ou=people,{base}
member: uid=emil,ou=people,{base}

dn: cn=admins,ou=groups,{base}
objectClass: groupOfNames
cn: admins
member: {root}
"""


class Slapd(ServerProcess):
    @property
    def url(self) -> str:
        return f"ldap://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Fill the directory, before the start."""
        (self.directory / "data").mkdir()
        settings = self.directory / "slapd.conf"
        settings.write_text(
            _SETTINGS.format(
                schema=SCHEMA,
                modules=MODULES,
                directory=self.directory,
                base=BASE,
                root=ROOT,
                password=ROOT_PASSWORD,
            )
        )
        people = _PEOPLE.format(base=BASE, root=ROOT)
        command = [str(Path(SLAPD).with_name("slapadd")), "-f", str(settings)]
        subprocess.run(command, input=people, text=True, check=True, capture_output=True)

    def command(self) -> list[str]:
        return [SLAPD, "-f", str(self.directory / "slapd.conf"), "-h", self.url, "-d", "0"]

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS_MAX):
            return True
        return False


def started(require_service: Callable[[object, str], None]) -> Slapd:
    require_service(Path(SLAPD).exists() and SCHEMA.exists(), WANT)
    server = Slapd()
    try:
        server.prepare()
        server.start()
    except BaseException:
        server.remove()
        raise
    return server
