"""An S3-compatible bucket as the archive, on a small server that checks every signature."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import limpet
from limpet.session.history.checkpoints import store_checkpoints
from limpet.session.life.archive_storage import open_archive
from limpet.session.life.s3 import Credentials, signed
from limpet.session.writer import writer_of
from tests.support.bucket import Bucket, bucket_server


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """The files of a bucket `cold` on a server of this test."""
    with bucket_server(monkeypatch.setenv) as files:
        yield files


async def test_a_session_goes_to_a_bucket_and_comes_back(bucket: dict[str, bytes]) -> None:
    """Requests are signed as S3 wants them; the file is put, read back, read and removed."""
    async with limpet.open("memory://", archive="s3://cold/limpet/a b") as lp:
        s = await lp.create("support", "ada", state={"n": 1}, actor="user:ada")
        await s.complete()
        await s.archive()
        (name,) = bucket
        assert name.startswith("limpet/a b/")
        assert (await lp.get(s.key, archived=True)).values == {"n": 1}
        await lp.unarchive(s.key)
        assert bucket == {}
        await (await lp.get(s.key, actor="user:ada")).archive()
        await lp.erase_user("support", "ada")
        assert bucket == {}


async def test_a_bucket_that_refuses_leaves_the_rows(
    bucket: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the wrong secret nothing is put, and nothing leaves the store."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    async with limpet.open("memory://", archive="s3://cold") as lp:
        s = await lp.create("support", "ada", state={"n": 1}, actor="user:ada")
        await s.complete()
        with pytest.raises(limpet.errors.ArchiveFailed, match="403"):
            await s.archive()
        assert bucket == {}
        assert (await lp.get(s.key, archived=True)).values == {"n": 1}


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_a_signature_is_the_one_that_amazon_publishes(query: str, signature: str) -> None:
    """The examples in the S3 API reference: "Authenticating requests (AWS Signature Version 4)"."""
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    keys = Credentials("AKIAIOSFODNN7EXAMPLE", secret, "us-east-1")
    url = f"https://examplebucket.s3.amazonaws.com/?{query}"
    nothing = hashlib.sha256(b"").hexdigest()
    headers = signed("GET", url, nothing, keys, datetime(2013, 5, 24, tzinfo=UTC))
    assert headers["Authorization"].endswith(f"Signature={signature}")
    assert "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request" in str(headers)


async def test_a_bucket_that_keeps_what_is_deleted_is_an_error(
    bucket: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a legal hold, say: nobody waits for it, and nothing is said to be erased."""
    async with limpet.open("memory://", archive="s3://cold/limpet") as lp:
        for id in ("one", "two", "three"):
            s = await lp.create("support", "ada", id=id, state={"n": 1}, actor="user:ada")
            await s.complete()
            await s.archive()
        monkeypatch.setattr(Bucket, "keeps", True)
        with pytest.raises(limpet.errors.ArchiveFailed, match="still listed"):
            await lp.erase_user("support", "ada")
        assert (await lp.get(s.key, archived=True)).values == {"n": 1}


async def test_a_bucket_with_many_files_of_a_user_is_emptied(bucket: dict[str, bytes]) -> None:
    """A listing has a page of names: it is asked for again until none is left."""
    async with limpet.open("memory://", archive="s3://cold/limpet") as lp:
        for id in ("one", "two", "three & <four>"):
            s = await lp.create("support", "ada", id=id, actor="user:ada")
            await s.complete()
            await s.archive()
        assert len(bucket) == 3
        await lp.erase_user("support", "ada")
        assert bucket == {}


async def test_a_file_that_a_bucket_changed_is_refused(bucket: dict[str, bytes]) -> None:
    """What comes back is compared with what was put there; the session stays archived."""
    async with limpet.open("memory://", archive="s3://cold") as lp:
        s = await lp.create("support", "ada", state={"n": 1}, actor="user:ada")
        await s.complete()
        await s.archive()
        (name,) = bucket
        whole, bucket[name] = bucket[name], b"x"
        with pytest.raises(limpet.errors.ArchiveFailed):
            await lp.unarchive(s.key)
        bucket.pop(name)
        with pytest.raises(limpet.errors.ArchiveFailed, match="404"):
            await lp.get(s.key, archived=True)
        bucket[name] = whole
        await lp.unarchive(s.key)
        assert (await lp.get(s.key)).values == {"n": 1}


async def test_checkpoints_go_to_a_bucket(bucket: dict[str, bytes]) -> None:
    """Each has a file there that its state can be read from; deleting the session removes them."""
    async with limpet.open("memory://") as lp:
        await lp.policies.checkpointing("support", limpet.CheckpointPolicy(tier="s3://cold/limpet"))
        s = await lp.create("support", "ada", state={"n": 1}, actor="user:ada")
        await s.checkpoint()
        await s.append("agent.did", set={"n": 2})
        await s.checkpoint()
        newest, first = (await s.history.checkpoints()).items
        assert sorted(bucket) == sorted(
            f"limpet/{each.place.file}" for each in (newest, first) if each.place is not None
        )
        tiers = store_checkpoints(writer_of(s).journal).tiers
        assert newest.place is not None
        assert await tiers.fields((s.key, s.head.uid), newest.place) == {"n": 2}
        await lp.delete(s.key)
        assert bucket == {}


async def test_an_answer_that_is_cut_off_is_a_failure_of_the_archive(
    bucket: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is an endpoint that is no URL: who waits for a checkpoint there is told so."""

    def cut(self: Bucket, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) + 10))
        self.end_headers()
        self.wfile.write(body)

    archive = open_archive("s3://cold/limpet")
    assert archive is not None
    await archive.remove_all("ada")
    monkeypatch.setattr(Bucket, "_answer", cut)
    with pytest.raises(limpet.errors.ArchiveFailed):
        await archive.remove_all("ada")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost")
    nowhere = open_archive("s3://cold/limpet")
    assert nowhere is not None
    with pytest.raises(limpet.errors.ArchiveFailed):
        await nowhere.remove("ada")
