"""envelope.proto: what other languages compile is what we read and write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

import limpet
from limpet import envelope
from limpet.model.envelope import protobuf

MODEL = Path(limpet.__file__).parent / "model" / "envelope"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The file as the compiler understands it."""
    out = tmp_path_factory.mktemp("proto") / "envelope.pb"
    told = ["protoc", f"-I{MODEL}", f"--descriptor_set_out={out}", "envelope.proto"]
    assert protoc.main(told) == 0
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return file


def test_the_file_and_the_description_in_python_are_one(compiled: Any) -> None:
    """Every message, field, number and type."""
    for message in compiled.message_type:
        for field in message.field:
            field.ClearField("json_name")  # the compiler derives it from the name
    assert compiled == protobuf.described()


def test_classes_made_from_the_file_read_our_bytes(compiled: Any) -> None:
    """And write the same ones: another language needs no more than the file."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(compiled)
    theirs = message_factory.GetMessageClass(pool.FindMessageTypeByName("limpet.envelope.Envelope"))
    raw = envelope.encode(
        {"a": [-1, 0.5, "é"], "b": {"": None}},
        schema_version="1.4.0",
        state_version=7,
        serialized_at_us=9,
        format="protobuf",
    )
    found = theirs.FromString(raw)
    assert (found.envelope, found.schema_version, found.state_version) == (1, "1.4.0", 7)
    assert [(item.name, item.WhichOneof("kind")) for item in found.fields] == [
        ("", "dict"),
        ("a", "list"),
        ("", "integer"),
        ("", "real"),
        ("", "text"),
        ("b", "dict"),
        ("", "null"),
    ]
    assert found.SerializeToString() == raw
