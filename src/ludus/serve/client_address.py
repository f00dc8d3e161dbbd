"""The address of a client, which another worker may have forwarded with the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FROM_WORKER_KEY = "ludus_from_worker"
"""Set in the state of a connection from another worker, which has checked the request already."""
CLIENT_HEADER = "ludus-client"
"""Header with the address of the client, in a request that another worker forwards."""


def has_forwarded_address(scope: Mapping[str, Any]) -> bool:
    """Whether another worker forwarded this request, with the address of its client."""
    return FROM_WORKER_KEY in (scope.get("state") or {})


def client_address(scope: Mapping[str, Any]) -> str:
    """The address of the client that sent a request, for its share of the sessions."""
    if has_forwarded_address(scope):
        address: bytes = dict(scope["headers"]).get(CLIENT_HEADER.encode(), b"")
        return address.decode("latin-1")
    return scope["client"][0] if scope.get("client") else ""
