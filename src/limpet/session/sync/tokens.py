"""Tokens without await. Apart from the other verbs: it needs the packages of an extra."""

from __future__ import annotations

from limpet.security.tokens import TokenPolicy
from limpet.session.sync.facade import Attribute, Facade, awaiting, blocking
from limpet.session.sync.verbs import SyncLimpet, limpet_of
from limpet.session.tokens import Tokens


class SyncTokens(Facade[Tokens], of=Tokens):
    """Tokens without await: `limpet.SyncTokens(lp, signing=…)` of a `limpet.open_sync(url)`."""

    def __init__(self, lp: SyncLimpet, *, signing: str, policy: TokenPolicy | None = None) -> None:
        of, loop = limpet_of(lp)
        super().__init__(Tokens(of, signing=signing, policy=policy), loop)

    policy: Attribute[TokenPolicy]
    issue = awaiting(Tokens.issue)
    check = blocking(Tokens.check)
    rotate = blocking(Tokens.rotate)
    revoke = blocking(Tokens.revoke)
