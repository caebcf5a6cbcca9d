"""An S3-compatible bucket as an archive: four requests, signed with AWS Signature Version 4.

Credentials and the region come from the environment, as for every S3 client: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, and AWS_ENDPOINT_URL for other servers.
"""

from __future__ import annotations

import hmac
import os
import re
import shutil
from datetime import UTC, datetime
from hashlib import file_digest, sha256
from html import unescape
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from limpet.errors import ArchiveFailed
from limpet.store.coding.files import check_inside
from limpet.store.system import in_thread

TIMEOUT_SECONDS: Final = 60
_EMPTY: Final = sha256(b"").hexdigest()
_KEYS: Final = re.compile(r"<Key>([^<]*)</Key>")


class Credentials(NamedTuple):
    """The credentials of a request, and its region."""

    id: str
    secret: str
    region: str
    token: str = ""


class BucketArchive:
    """A prefix in a bucket."""

    def __init__(self, bucket: str, prefix: str) -> None:
        env = os.environ
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        base = env.get("AWS_ENDPOINT_URL") or f"https://s3.{region}.amazonaws.com"
        self._base = f"{base.rstrip('/')}/{bucket}"
        self._prefix = f"{prefix}/" if prefix else ""
        who = env.get("AWS_ACCESS_KEY_ID", ""), env.get("AWS_SECRET_ACCESS_KEY", "")
        self._keys = Credentials(*who, region, env.get("AWS_SESSION_TOKEN", ""))
        self.url = f"s3://{bucket}/{prefix}"

    async def put(self, name: str, path: Path) -> None:
        await in_thread(lambda: self._put(name, path))

    async def fetch(self, name: str, path: Path) -> None:
        await in_thread(lambda: self._fetch(name, path))

    async def remove(self, name: str) -> None:
        await in_thread(lambda: self._ask("DELETE", self._at(name, "removed"), "removed"))

    async def remove_all(self, folder: str) -> None:
        await in_thread(lambda: self._remove_all(folder))

    async def names(self, folder: str) -> list[str]:
        return await in_thread(lambda: self._names(folder))

    def _names(self, folder: str) -> list[str]:
        query, listed = {"list-type": "2", "prefix": f"{self._prefix}{folder}/"}, list[str]()
        while True:
            names = list(map(unescape, _KEYS.findall(self._ask("GET", "", "listed", query=query))))
            if not names:
                return [name.removeprefix(self._prefix) for name in listed]
            if listed and names[0] <= listed[-1]:
                raise ArchiveFailed(self.url, "listed", "the same names are listed again")
            query["start-after"] = names[-1]
            listed += names

    def _put(self, name: str, path: Path) -> None:
        with path.open("rb") as body:
            digest, size = file_digest(body, "sha256").hexdigest(), body.tell()
            body.seek(0)
            to = self._at(name, "written")
            self._ask("PUT", to, "written", body=body, size=size, digest=digest)

    def _fetch(self, name: str, path: Path) -> None:
        with path.open("xb") as file:
            self._ask("GET", self._at(name, "read"), "read", into=file)

    def _at(self, name: str, doing: str) -> str:
        check_inside(self.url, name, doing)
        return self._prefix + name

    def _remove_all(self, folder: str) -> None:
        prefix = f"{self._at(folder, 'removed')}/"
        query, gone = {"list-type": "2", "prefix": prefix}, set[str]()
        while names := set(_KEYS.findall(self._ask("GET", "", "listed", query=query))):
            if names <= gone:  # as a bucket does that is locked against deletion
                raise ArchiveFailed(self.url, "removed", "deleted files are still listed")
            for name in names - gone:
                self._ask("DELETE", unescape(name), "removed")
            gone |= names

    def _ask(
        self,
        method: str,
        name: str,
        doing: str,
        *,
        query: dict[str, str] | None = None,
        body: Any = None,
        size: int = 0,
        digest: str = _EMPTY,
        into: IO[bytes] | None = None,
    ) -> str:
        """Send one signed request; return its answer as text, or write it to a file."""
        asked = urlencode(sorted((query or {}).items()), quote_via=quote)
        url = f"{self._base}/{quote(name)}".rstrip("/") + (f"?{asked}" if asked else "")
        headers = signed(method, url, digest, self._keys, datetime.now(UTC))
        if body is not None:
            headers["Content-Length"] = str(size)
        try:
            request = Request(url, data=body, headers=headers, method=method)
            # The endpoint is the operator's, and checked when the archive is opened.
            with urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # nosec B310
                if into is not None:
                    shutil.copyfileobj(answer, into)
                    return ""
                text: str = answer.read().decode()
                return text
        except HTTPError as error:
            error.close()
            if method == "DELETE" and error.code == 404:
                return ""
            raise ArchiveFailed(self.url, doing, f"HTTP {error.code}") from error
        except (URLError, OSError, HTTPException, ValueError) as error:  # cut off, or not HTTP
            raise ArchiveFailed(self.url, doing, type(error).__name__) from error


def signed(method: str, url: str, digest: str, keys: Credentials, now: datetime) -> dict[str, str]:
    """The headers of a request whose body has this SHA-256, with its signature."""
    parts = urlsplit(url)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": parts.netloc, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    lines = [f"{name}:{headers[name]}" for name in sorted(headers)]
    asked = "\n".join([method, parts.path, parts.query, *lines, "", names, digest])
    scope = f"{day}/{keys.region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, sha256(asked.encode()).hexdigest()])
    key = f"AWS4{keys.secret}".encode()
    for part in (day, keys.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), sha256).hexdigest()
    given = f"Credential={keys.id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {given}"}
