"""Certificates of a cluster: a private certificate authority, and a certificate with a key for each role.

One command makes the certificates; people copy them to the computers. A process with a certificate belongs to the
cluster, and both sides of every connection show a certificate. The certificate of a node is valid for both sides. The
certificate of a client is valid only for a process that submits work. So a client cannot pretend to be a node and
receive images. The authority's key is used once and not stored, so that nobody can make more certificates. New
certificates replace all old certificates.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from fieldray.errors import UsageProblem
from fieldray.persistence import (
    PRIVATE_FILE_MODE,
    is_accessible_to_other_users,
    make_private_folder,
    storage_problem,
    write_new_file,
)
from fieldray.reasons import reason

if TYPE_CHECKING:
    from cryptography.x509 import KeyUsage

CertificateRole = Literal["node", "client"]
"""The role of a process in the cluster: a node, which does work, or a client, which submits work."""
AUTHORITY_FILE_NAME: Final = "authority.pem"
CERTIFICATE_FILE_NAMES: Final = (AUTHORITY_FILE_NAME, "node.pem", "node.key", "client.pem", "client.key")
CERTIFICATE_VALID_DAYS: Final = 825
# A node is also a client, because it connects to the scheduler.
_USES: Final[Mapping[CertificateRole, tuple[str, ...]]] = {
    "node": ("SERVER_AUTH", "CLIENT_AUTH"),
    "client": ("CLIENT_AUTH",),
}
_KEY_USES: Final = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip
_BEFORE: Final = datetime.timedelta(days=1)  # certificates are valid from yesterday, because clocks differ


def make_certificates(folder: Path, *, days: int = CERTIFICATE_VALID_DAYS) -> tuple[Path, ...]:
    """Make the certificates of a cluster, and write them to a folder. Returns the paths of the files.

    Only this user can read the files. `days` is the number of days for which the certificates are valid. Raises
    UsageProblem (cluster_certificates_there) if the folder has certificates, and StorageProblem.
    """
    there = [name for name in CERTIFICATE_FILE_NAMES if (folder / name).exists()]
    if there:
        raise UsageProblem(reason("cluster_certificates_there", folder=folder, name=there[0]))
    contents = _make_certificates(days)
    try:
        make_private_folder(folder)
        for name, data in contents.items():
            write_new_file(folder / name, data, mode=PRIVATE_FILE_MODE)
    except OSError as error:
        raise storage_problem(error, folder) from error
    return tuple(folder / name for name in CERTIFICATE_FILE_NAMES)


def certificate_and_key_paths(folder: Path, role: CertificateRole) -> tuple[Path, Path]:
    """Return the paths of the certificate and of the key of a role."""
    return folder / f"{role}.pem", folder / f"{role}.key"


def require_certificates(folder: Path, role: CertificateRole) -> datetime.date:
    """Check the certificates of a role in a folder. Returns the last day on which they are valid.

    Raises UsageProblem: cluster_certificates if files are missing or invalid, cluster_certificates_expired, or
    cluster_key_open if other users can read the key.
    """
    from cryptography import x509

    certificate, key = certificate_and_key_paths(folder, role)
    path = folder
    try:
        for path in (folder / AUTHORITY_FILE_NAME, certificate, key):
            path.read_bytes()
        context = ssl.create_default_context(cafile=str(folder / AUTHORITY_FILE_NAME))
        path = certificate
        context.load_cert_chain(certificate, key)
        until = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
        is_open = is_accessible_to_other_users(key)
    except (OSError, ssl.SSLError, ValueError) as error:
        detail = f"{path.name}: {getattr(error, 'strerror', None) or type(error).__name__}"
        raise UsageProblem(reason("cluster_certificates", folder=folder, detail=detail)) from error
    if until < datetime.datetime.now(datetime.UTC):
        raise UsageProblem(reason("cluster_certificates_expired", folder=folder, date=until.date().isoformat()))
    if is_open:
        raise UsageProblem(reason("cluster_key_open", path=key))
    return until.date()


def certificate_text(folder: Path, role: CertificateRole) -> str:
    """Return a text with role, authority and last day of certificates, which people can compare between computers.

    Raises as `require_certificates`.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    day = require_certificates(folder, role).isoformat()
    authority = (
        x509.load_pem_x509_certificate((folder / AUTHORITY_FILE_NAME).read_bytes()).fingerprint(hashes.SHA256()).hex()
    )
    return f"Certificates in {folder}: of a {role}, of the cluster {authority[:16]}, valid until {day}."


def _key_usage(*uses: str) -> KeyUsage:
    from cryptography.x509 import KeyUsage

    return KeyUsage(**{use: use in uses for use in _KEY_USES})


def _make_certificates(days: int) -> dict[str, bytes]:
    """Make certificates (RFC 5280) and keys, valid for `days` days. Returns the contents of the files by file name."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())

    def begun(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("Fieldray cluster"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority_id, critical=False)
        )

    authority = (
        begun("Fieldray cluster", authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    made = {AUTHORITY_FILE_NAME: authority.public_bytes(encoding)}
    for role, uses in _USES.items():
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            begun(f"Fieldray {role}", key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([getattr(ExtendedKeyUsageOID, use) for use in uses]), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        made[f"{role}.pem"] = certificate.public_bytes(encoding)
        made[f"{role}.key"] = key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    return made
