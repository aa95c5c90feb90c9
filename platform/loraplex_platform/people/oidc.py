"""Signing in at an OpenID provider: authorization code with PKCE, state and nonce."""

import json
import secrets as random
from collections.abc import Mapping
from typing import Any, NamedTuple

import structlog
from authlib.integrations.httpx_client import AsyncOAuth2Client, OAuthError
from authlib.oidc.core import CodeIDToken
from authlib.oidc.discovery import OpenIDProviderMetadata, get_well_known_url
from cryptography.fernet import InvalidToken
from httpx2 import HTTPError
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidLogin, Overloaded
from loraplex_platform.kit.sealing import Sealer
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.people.sessions import SessionService
from loraplex_platform.people.single_sign_on import Provider

LABEL = "loraplex oidc attempts"
ATTEMPT_S = 600.0  # how long somebody may take at the provider
LEEWAY_S = 60
TIMEOUT_S = 10.0
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "Ed25519")

log = structlog.get_logger(__name__)


class Attempt(NamedTuple):
    """What this browser is to bring back, or to prove."""

    state: str
    nonce: str
    verifier: str
    then: str  # the page to go to afterwards
    begun_s: float  # of Unix


class OidcSignIn:
    """Nobody is made by it, unless the settings name a role for those who are new."""

    def __init__(
        self, provider: Provider, sessions: SessionService, secrets: Secrets, clock: Clock
    ) -> None:
        self._provider = provider
        self._sessions = sessions
        self._sealer = Sealer(secrets, LABEL)
        self._clock = clock

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach us over HTTPS."""
        return self._provider.redirect_uri.startswith("https://")

    async def begin(self, then: str) -> tuple[str, str]:
        """Where to send the browser, and what it is to keep in a cookie meanwhile."""
        attempt = Attempt(
            random.token_urlsafe(32),
            random.token_urlsafe(32),
            random.token_urlsafe(48),
            then,
            self._clock.now().timestamp(),
        )
        async with self._client() as client:
            try:
                metadata = await self._metadata(client)
            except (HTTPError, ValueError) as error:
                log.warning("oidc_provider_away", error=type(error).__name__)
                raise Overloaded("The sign-in provider does not answer.") from error
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=attempt.state,
                nonce=attempt.nonce,
                code_verifier=attempt.verifier,
            )
        return str(url), self._sealer.seal(json.dumps(attempt).encode()).decode()

    async def finish(
        self, kept: str, query: Mapping[str, str], address: str | None
    ) -> tuple[str, str]:
        """A session's token, and the page to go to; raises InvalidLogin, whatever is wrong."""
        attempt = self._attempt(kept)
        state = query.get("state", "")
        if attempt is None or not random.compare_digest(attempt.state.encode(), state.encode()):
            raise InvalidLogin("This sign-in was not begun here, or too long ago.")
        try:
            claims = await self._claims(attempt, query.get("code", ""))
        except (HTTPError, OAuthError, JoseError, ValueError, KeyError) as error:
            log.warning("oidc_refused", error=f"{type(error).__name__}: {error}"[:200])
            raise InvalidLogin("The provider did not sign you in.") from error
        email = claims.get("email")
        if claims.get("email_verified") is not True or not isinstance(email, str):
            raise InvalidLogin("The provider has not verified your e-mail address.")
        role = self._provider.new_role
        return await self._sessions.open_verified(email, role, address), attempt.then

    async def _claims(self, attempt: Attempt, code: str) -> Mapping[str, Any]:
        """What the provider signed for this client and this attempt."""
        provider = self._provider
        async with self._client() as client:
            metadata = await self._metadata(client)
            token = await client.fetch_token(
                metadata["token_endpoint"], code=code, code_verifier=attempt.verifier
            )
            keys = await client.request("GET", metadata["jwks_uri"], withhold_token=True)
        signed = jwt.decode(
            token["id_token"], KeySet.import_key_set(keys.json()), algorithms=ALGORITHMS
        )
        claims = CodeIDToken(
            signed.claims,
            signed.header,
            options={
                "iss": {"essential": True, "value": provider.issuer},
                "aud": {"essential": True, "value": provider.client_id},
            },
            params={
                "nonce": attempt.nonce,
                "client_id": provider.client_id,
                "access_token": token.get("access_token"),
            },
        )
        claims.validate(now=int(self._clock.now().timestamp()), leeway=LEEWAY_S)
        return dict(claims)

    async def _metadata(self, client: AsyncOAuth2Client) -> Mapping[str, Any]:
        url = get_well_known_url(self._provider.issuer, external=True)
        answer = await client.request("GET", url, withhold_token=True)
        answer.raise_for_status()
        metadata = OpenIDProviderMetadata(answer.json())
        if metadata.get("issuer") != self._provider.issuer:
            raise ValueError("the provider calls itself something else")
        return dict(metadata)

    def _client(self) -> AsyncOAuth2Client:
        return AsyncOAuth2Client(
            self._provider.client_id,
            self._provider.client_secret,
            scope="openid email",
            redirect_uri=self._provider.redirect_uri,
            code_challenge_method="S256",
            timeout=TIMEOUT_S,
        )

    def _attempt(self, kept: str) -> Attempt | None:
        try:
            attempt = Attempt(*json.loads(self._sealer.open(kept.encode())))
        except InvalidToken:
            return None
        age_s = self._clock.now().timestamp() - attempt.begun_s
        return attempt if 0 <= age_s < ATTEMPT_S else None
