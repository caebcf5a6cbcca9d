"""Tokens without await. Apart from the other verbs: it needs the packages of an extra."""

from __future__ import annotations

from limpet.errors import InvalidInput
from limpet.model import described
from limpet.security.tokens import TokenPolicy
from limpet.session.sync.facade import Attribute, Facade, awaiting, behind, blocking
from limpet.session.sync.verbs import SyncLimpet
from limpet.session.tokens import Tokens


class SyncTokens(Facade[Tokens], of=Tokens):
    """Tokens without await: `limpet.SyncTokens(lp, signing=…)` of a `limpet.open_sync(url)`."""

    def __init__(self, lp: SyncLimpet, *, signing: str, policy: TokenPolicy | None = None) -> None:
        if not isinstance(lp, SyncLimpet):
            raise InvalidInput(f"lp is what limpet.open_sync gives, not {described(lp)}.")
        of, loop = behind(lp)
        super().__init__(Tokens(of, signing=signing, policy=policy), loop)

    policy: Attribute[TokenPolicy]
    issue = awaiting(Tokens.issue)
    check = blocking(Tokens.check)
    rotate = blocking(Tokens.rotate)
    revoke = blocking(Tokens.revoke)
