"""The certificates of mutual TLS, read again when they change.

They are read for every connection that begins a handshake, so a renewed certificate or authority
takes effect without a restart. Contents are compared, not file times: the files are small, and no
renewal within one tick of the clock is missed. Certificates that do not fit together are refused at
the start; later the old ones stay in use, because a renewal writes one file after the other.

Rejected: gRPC's own `dynamic_ssl_server_credentials`. It replaces what handshakes in progress are
using, and ends the process when many of them time out (grpc/grpc issue 36693).
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc
from driftline.errors import ConfigurationError
from driftline.settings.declarations import read_secret

from source_agent.config.file import Certificates

Contents = tuple[bytes, bytes, bytes]  # certificate, key, client_ca

_log = logging.getLogger("driftline.source")


class WatchedCertificates:
    """Certificates that are read again when one of the files changes."""

    def __init__(self, files: Certificates, config_name: str) -> None:
        """Read and check the files. Raise ConfigurationError if they cannot be used."""
        self._files, self._config_name = files, config_name
        self._contents = self._before = self._read_all()
        self._check(self._contents)
        self._complaint = ""

    def credentials(self) -> grpc.ServerCredentials:
        """Return gRPC credentials made from the current files."""
        certificate, key, ca = self._contents
        return grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)

    def changed(self) -> bool:
        """Return True if usable new certificates are on disk."""
        try:
            contents = self._read_all()
            if contents == self._contents:
                self._complaint = ""
                return False
            self._check(contents)
        except ConfigurationError as error:
            if str(error) != self._complaint:  # once, not for every connection
                self._complaint = str(error)
                _log.warning("the certificates on disk are not usable yet: %s", error)
            return False
        self._before, self._contents, self._complaint = self._contents, contents, ""
        _log.info("the certificates were read again")
        return True

    def undo(self) -> None:
        """Return to the contents before, so that the next `changed` reports the new ones again."""
        self._contents = self._before

    def _read_all(self) -> Contents:
        files = self._files
        certificate = self._read("certificate", files.certificate)
        return certificate, self._read("key", files.key), self._read("client_ca", files.client_ca)

    def _check(self, contents: Contents) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # gRPC would only fail every handshake; Python's ssl says what is wrong.
            context.load_cert_chain(self._files.certificate, self._files.key, password="")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise self._error("certificate", f"It does not go with its key: {error}.") from None
        try:
            context.load_verify_locations(cadata=contents[2].decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise self._error("client_ca", f"It holds no certificate: {error}.") from None

    def _read(self, setting: str, path: Path) -> bytes:
        try:
            data, exposed = read_secret(path)
        except OSError as error:
            raise self._error(setting, f"{path} cannot be read: {error.strerror}.") from None
        if exposed and setting == "key":
            raise self._error(setting, f"The key {path} {exposed}.", f"Run: chmod 600 {path}")
        return data

    def _error(
        self,
        setting: str,
        message: str,
        remedy: str = "`driftline-source enroll` makes a set that fits together.",
    ) -> ConfigurationError:
        where = f"{self._config_name}: server.{setting}"
        return ConfigurationError(message, where=where, remedy=remedy)
