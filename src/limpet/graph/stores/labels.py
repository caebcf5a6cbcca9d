"""Label texts: how any text becomes the value of a label, by which documents are found."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from limpet.errors import InvalidSchema
from limpet.model import LABEL_VALUE_CHARS_MAX, unfit

CORRELATION: Final = "graph.correlation"
SCHEMA: Final = "graph.schema"
SESSION: Final = "graph.session"
STATUS: Final = "graph.status"


def label_text(text: str) -> str:
    """The text itself, or quoted where a label cannot hold it; a digest where it is too long."""
    if unfit(text, LABEL_VALUE_CHARS_MAX) is None and not text.startswith('"'):
        return text
    quoted = json.dumps(text)
    if len(quoted) <= LABEL_VALUE_CHARS_MAX:
        return quoted
    return f'"sha256:{hashlib.sha256(quoted.encode()).hexdigest()}'


def schema_label(version: str) -> str:
    """The label of a schema version. Raises InvalidSchema if it cannot be read back."""
    label = label_text(version)
    if schema_of(label) != version:
        advice = "Name a version by a short text, such as 'v1' or '2026-05'"
        raise InvalidSchema(f"a version of {len(version):,} characters cannot be stored", advice)
    return label


def schema_of(label: str) -> str:
    """The schema version that a label holds."""
    if not label.startswith('"') or not label.endswith('"'):
        return label
    return str(json.loads(label))
