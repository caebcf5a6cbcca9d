"""Checkpoint records as documents: their labels, and the way back from what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from limpet.errors import CheckpointRecordInvalid
from limpet.graph.checkpoint import CheckpointFilter, CheckpointRecord, CheckpointSummary, Document
from limpet.graph.sessions import label_text
from limpet.graph.stores.documents import Labels, own_fields
from limpet.graph.stores.labels import CORRELATION, SESSION, STATUS
from limpet.model import Head, thaw
from limpet.store.protocol import Page


def labels_of(record: CheckpointRecord) -> Labels:
    """What a record is found by.

    Labels are few, because each costs a run as much as a step. A record that is running or
    completed has no label for its status, and the first run of a correlation is found by its id.
    """
    first = record.correlation_id == record.invocation_id
    return {
        CORRELATION: None if first else label_text(record.correlation_id),
        SESSION: None if record.session_id is None else label_text(record.session_id),
        STATUS: record.status if record.status == "suspended" else None,
    }


def is_asked(head: Head, asked: Mapping[str, str]) -> bool:
    """Whether a record has these labels. The first of a correlation has none for it, but its id."""
    labels: Mapping[str, Any] = head.labels
    if CORRELATION not in labels:
        labels = {**labels, CORRELATION: label_text(head.key.id)}
    return asked.items() <= labels.items()


def labels_asked(wanted: CheckpointFilter) -> dict[str, str] | None:
    """Labels that every record has which a filter asks for, but the first of a correlation.

    `matches` decides about the rest.
    """
    asked = {
        CORRELATION: wanted.correlation_id,
        SESSION: wanted.session_id,
        STATUS: wanted.status if wanted.status == "suspended" else None,
    }
    return {name: label_text(text) for name, text in asked.items() if text is not None} or None


def fields_of(record: CheckpointRecord) -> Document:
    """What is stored of a record: not what its session knows anyway, since every name costs a run.

    The id is that of the session's key, the revision its version, and the time that of its last
    event, by the store's clock.
    """
    made = record.to_document()
    del made["invocation_id"], made["revision"], made["last_saved_at"]
    if record.status == "running":
        del made["status"]
    return made


def record_of(head: Head, values: Mapping[str, Any]) -> CheckpointRecord:
    """The record that a session keeps. Raises CheckpointRecordInvalid."""
    fields = thaw(own_fields(values))
    fields["invocation_id"], fields["revision"] = head.key.id, head.version
    fields["last_saved_at"] = head.updated_at
    try:
        return CheckpointRecord.from_document(fields)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        reason = f"what is stored is not a record ({type(error).__name__})"
        raise CheckpointRecordInvalid(head.key.id, reason) from error


def summaries(page: Page) -> list[CheckpointSummary]:
    """The records of a page that was read with its states."""
    found = []
    for head in page.items:
        if head.key in page.states:
            found.append(record_of(head, page.states[head.key]).summary())
    return found
