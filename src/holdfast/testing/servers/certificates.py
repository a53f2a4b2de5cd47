"""Certificates for servers with TLS on loopback: an authority, and what a server shows that it has signed."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from . import find

AUTHORITY = "ca.pem"
CERTIFICATE = "server.pem"
KEY = "server.key"


def make_certificates(folder: Path) -> None:
    """Make all files in this folder."""
    make = [find("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    server = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1"]
    for name, more in (("ca", []), ("server", [*server, "-addext", "basicConstraints=critical,CA:FALSE"])):
        files = ["-subj", f"/CN=holdfast {name}", "-days", "2", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run([*make, *more, *files], cwd=folder, check=True, capture_output=True)


def trust(folder: Path) -> ssl.SSLContext:
    """Return what a client needs that trusts the authority of this folder, and nobody else."""
    context = ssl.create_default_context(cafile=folder / AUTHORITY)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # from Python 3.13 on; our authority is a plain one
    return context
