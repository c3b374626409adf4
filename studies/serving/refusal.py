"""A request that is not answered, in the shape that clients of OpenAI's API read."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    """One plain sentence with its status; `param` is the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        """``{"error": {message, type, param, code}}``."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """When to try again, where that helps."""
        return {"Retry-After": "1"} if self.status in (429, 503) else {}


def failure() -> Refusal:
    """What a client hears of a fault of ours."""
    return Refusal(500, "the server failed on this request; its log has the reason")
