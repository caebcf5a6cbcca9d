"""Checkpoint records as documents: their labels, and the way back from what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from limpet.errors import CheckpointRecordInvalid
from limpet.graph.checkpoint import CheckpointFilter, CheckpointRecord, CheckpointSummary
from limpet.graph.stores.documents import Labels, own_fields
from limpet.graph.stores.labels import CORRELATION, SESSION, STATUS, label_text
from limpet.model import thaw
from limpet.store.protocol import Page


def labels_of(record: CheckpointRecord) -> Labels:
    """What a record is found by.

    Few, because a label costs a run as much as a step: what runs or is completed has no status.
    """
    return {
        CORRELATION: label_text(record.correlation_id),
        SESSION: None if record.session_id is None else label_text(record.session_id),
        STATUS: record.status if record.status == "suspended" else None,
    }


def labels_asked(wanted: CheckpointFilter) -> dict[str, str] | None:
    """Labels that every record has which a filter asks for; `matches` decides about the rest."""
    asked = {
        CORRELATION: wanted.correlation_id,
        SESSION: wanted.session_id,
        STATUS: wanted.status if wanted.status == "suspended" else None,
    }
    return {name: label_text(text) for name, text in asked.items() if text is not None} or None


def record_of(fields: Mapping[str, Any], invocation_id: str) -> CheckpointRecord:
    """The record of a document. Raises CheckpointRecordInvalid."""
    try:
        return CheckpointRecord.from_document(thaw(fields))
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        reason = f"what is stored is not a record ({type(error).__name__})"
        raise CheckpointRecordInvalid(invocation_id, reason) from error


def summaries(page: Page) -> list[CheckpointSummary]:
    """The records of a page that was read with its states."""
    found = []
    for head in page.items:
        if head.key in page.states:
            fields = own_fields(page.states[head.key])
            found.append(record_of(fields, head.key.id).summary())
    return found
