"""An OpenID provider over HTTP: it signs real tokens, and can be made to sign wrong ones."""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT_ID, CLIENT_SECRET = "loraplex", "the client's secret"


@dataclass
class OpenIdProvider:
    port: int
    key: RSAKey
    published: RSAKey
    email: str = "owner@platform"
    forged: dict[str, Any] = field(default_factory=dict)  # claims in place of the right ones
    codes: dict[str, dict[str, str]] = field(default_factory=dict)  # code -> what was asked

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def authorize(self, url: str) -> str:
        """Somebody signs in here: where their browser is sent back to."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        """None: this is no code of that client, or not who asked for it."""
        expected = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        asked = self.codes.pop(form.get("code", ""), None)  # a code is good once
        if asked is None or authorization != f"Basic {expected}":
            return None
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return None
        return {
            "access_token": "a",
            "token_type": "Bearer",
            "id_token": self.signed(asked["nonce"]),
        }

    def signed(self, nonce: str) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "sub": "42",
            "iat": now,
            "exp": now + 300,
            "nonce": nonce,
            "email": self.email,
            "email_verified": True,
        }
        claims = {name: value for name, value in (claims | self.forged).items() if value != ""}
        return jwt.encode({"alg": "RS256", "kid": self.published.kid}, claims, self.key)

    @property
    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }


@cache
def new_key(name: str) -> RSAKey:
    """Another for each name; to make one takes a while."""
    return RSAKey.generate_key(2048, {"kid": name})


@contextmanager
def openid_provider() -> Iterator[OpenIdProvider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys = KeySet([provider.published]).as_dict(private=False)
            pages = {"/.well-known/openid-configuration": provider.metadata, "/keys": keys}
            self._answer(200, pages[self.path])

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            token = provider.token(form, self.headers.get("authorization", ""))
            self._answer(200 if token else 400, token or {"error": "invalid_grant"})

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    key = new_key("usual")
    provider = OpenIdProvider(server.server_port, key, key)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield provider
    server.shutdown()
    server.server_close()
