"""Policies behind a server: what they decide by the address that a request comes from."""

from __future__ import annotations

from pathlib import Path

import limpet
from limpet.server import ids
from limpet.server.app import build
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of
from tests.support.asgi import ask

PLACE = f"/limpet/v1/sessions/{ids.session_id('c1')}/state"
RULE = """
@id("everybody")
permit (principal, action, resource);

@id("office-only")
forbid (principal, action, resource)
when { context has address && context.address == ip("127.0.0.1") };
"""


async def test_a_policy_knows_where_a_request_comes_from(tmp_path: Path) -> None:
    """The same key is refused from the address that the policy names, and let in elsewhere."""
    rules = tmp_path / "rules.cedar"
    rules.write_text(RULE)
    async with limpet.open(f"sqlite:///{tmp_path}/x.db", policies=rules) as lp:
        await lp.create("support", "ada", "c1")
        keys = AccessKeys(journal_of(lp))
        _, text = await keys.create(role="owner", app="support", user="ada")
        key = {"authorization": f"Bearer {text}"}
        app = build(lp, rate=None)
        here = await ask(app, "GET", PLACE, headers=key)
        assert here.status in (403, 404)
        rules.write_text(RULE.replace("127.0.0.1", "192.0.2.7"))
    async with limpet.open(f"sqlite:///{tmp_path}/x.db", policies=rules) as lp:
        app = build(lp, rate=None)
        elsewhere = await ask(app, "GET", PLACE, headers=key)
        assert elsewhere.status == 200
