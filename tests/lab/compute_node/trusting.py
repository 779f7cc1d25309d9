"""The middleware of Keystone's place for the services of these tests: whoever asks is an administrator."""

import json
from collections.abc import Callable, Iterable
from typing import Any

ENDPOINTS = {"image": "http://10.77.0.1:9292", "network": "http://10.77.0.1:9696"}
CATALOG = [
    {"type": kind, "name": kind, "endpoints": [{"publicURL": url, "internalURL": url, "adminURL": url}]}
    for kind, url in ENDPOINTS.items()
]
WHO = {
    "HTTP_X_IDENTITY_STATUS": "Confirmed",
    "HTTP_X_AUTH_TOKEN": "anybody",
    "HTTP_X_USER_ID": "11111111111111111111111111111111",
    "HTTP_X_USER_NAME": "ann",
    "HTTP_X_PROJECT_ID": "22222222222222222222222222222222",
    "HTTP_X_PROJECT_NAME": "sales",
    "HTTP_X_ROLES": "admin,member,reader",
    "HTTP_X_SERVICE_CATALOG": json.dumps(CATALOG),
}
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def filter_factory(_settings: dict[str, str], **_more: str) -> Callable[[Application], Application]:
    """Return what stands before a service in place of keystonemiddleware.auth_token."""

    def before(application: Application) -> Application:
        return lambda environ, start: application(environ | WHO, start)

    return before
