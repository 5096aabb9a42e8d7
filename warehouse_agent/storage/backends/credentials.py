"""Where credentials of an object store come from; each process finds them for itself.

A profile of a file of AWS's shared credentials is read again for each use, so that keys which
another program renews are met. Without a profile obstore and delta-rs look themselves: in the
environment, then at a web identity, a container's or a machine's metadata, and renew what ends.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftline.errors import ConfigurationError

if TYPE_CHECKING:
    from warehouse_agent.config import StorageSettings

_KEYS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The place of credentials. As text it names the place, and never a value."""

    settings: StorageSettings

    @property
    def profile(self) -> str | None:
        """Return the profile whose keys are used; None: the environment or the machine has them."""
        if self.settings.profile is not None or self.settings.credentials_file is not None:
            return self.settings.profile or "default"
        has_keys = "AWS_ACCESS_KEY_ID" in os.environ
        return None if has_keys else os.environ.get("AWS_PROFILE")

    @property
    def file(self) -> Path:
        """Return the file of profiles."""
        noted = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
        return (self.settings.credentials_file or Path(noted)).expanduser()

    def __str__(self) -> str:
        if (profile := self.profile) is not None:
            return f"the profile {profile!r} of {self.file}"
        if "AWS_ACCESS_KEY_ID" in os.environ:
            return "AWS_ACCESS_KEY_ID of the environment"
        return "credentials of this machine (no profile, no AWS_ACCESS_KEY_ID)"

    def static(self) -> dict[str, str]:
        """Return the keys of the profile; nothing without a profile.

        Raises:
            ConfigurationError: the file or the profile is not there, or has no keys.
        """
        if (profile := self.profile) is None:
            return {}
        parser = configparser.RawConfigParser(default_section="")
        try:
            parser.read_string(self.file.read_text("utf-8"))
            found = dict(parser[profile])
        except (OSError, UnicodeDecodeError, configparser.Error, KeyError) as error:
            why = "it has no such profile" if isinstance(error, KeyError) else "it cannot be read"
            raise self._refused(why) from None
        keys = {name: found[there] for name, there in _KEYS.items() if found.get(there)}
        if not {"access_key_id", "secret_access_key"} <= keys.keys():
            raise self._refused("it has no aws_access_key_id and aws_secret_access_key")
        return keys

    def provider(self) -> Callable[[], Any] | None:
        """Return what obstore asks for keys, for each request; None: it looks itself."""
        if self.profile is None:
            return None
        self.static()

        def keys() -> dict[str, Any]:
            found = self.static()
            return {
                "access_key_id": found["access_key_id"],
                "secret_access_key": found["secret_access_key"],
                "token": found.get("session_token"),
                "expires_at": datetime.now(UTC),  # so it asks for each request
            }

        return keys

    def _refused(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"There are no credentials in {self}: {why}.",
            where="[storage]",
            remedy="Write the keys of that profile into the file, name another `profile` or "
            "`credentials_file`, or remove both: then the environment's or the machine's are used.",
        )
