"""Server and client for the head of a locally private run over HTTP; the paths of the service."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

ANSWERS, ABOUT, HEALTH, OPENAPI = "/v1/answers", "/v1/about", "/health", "/openapi.json"
ENCRYPTED = "/v1/encrypted"  # instead of the answers, with encrypted vectors

if TYPE_CHECKING:
    from discreet.local.client import UserSide as UserSide
    from discreet.local.encrypted import EncryptedClient as EncryptedClient
    from discreet.local.encrypted import EncryptedHead as EncryptedHead
    from discreet.local.head import Head as Head
    from discreet.local.http import serve as serve
    from discreet.local.limits import Limits as Limits
    from discreet.local.remote import RemoteServer as RemoteServer
    from discreet.local.server import ServerSide as ServerSide

_NAMES = {
    "discreet.local.client": ("UserSide",),
    "discreet.local.encrypted": ("EncryptedClient", "EncryptedHead"),
    "discreet.local.head": ("Head",),
    "discreet.local.http": ("serve",),
    "discreet.local.limits": ("Limits",),
    "discreet.local.remote": ("RemoteServer",),
    "discreet.local.server": ("ServerSide",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
