"""Error responses: a status, a message and a hint."""

from __future__ import annotations

from tornado import web

from nbmgpu.errors import NbmgpuError, split_remedy
from nbmgpu.runs.folder import runs_root

from .payloads import ErrorBody
from .run_folders import NoSuchRunError

LIST_HINT = "See the list of runs."


class ApiError(web.HTTPError):
    """An error response with a message for people."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        """Create a response with ``status``, a sentence, and what to do about it, if known."""
        super().__init__(status)
        self.body = ErrorBody(message, hint)


def error_response(status: int, error: NbmgpuError) -> ApiError:
    """Return the response for an error of nbmgpu, with what to type instead as its hint."""
    what, remedy = split_remedy(str(error))
    return ApiError(status, what, f"Try: {remedy}" if remedy else "")


def api_error_of(error: BaseException | None) -> ApiError:
    """Convert any exception to an error response."""
    match error:
        case ApiError():
            return error
        case NoSuchRunError():
            return ApiError(404, f"{error}.", LIST_HINT)
        case NbmgpuError():
            return error_response(409, error)
        case FileNotFoundError():
            return ApiError(
                404, f"{error.filename} does not exist: the run was deleted.", LIST_HINT
            )
        case PermissionError():
            what = f"This user may not read {error.filename or runs_root()}."
            return ApiError(403, what, f"Check its owner: ls -ld '{runs_root()}'")
        case OSError():
            return ApiError(500, f"{error.filename or runs_root()}: {error.strerror or error}.")
        case web.HTTPError(status_code=403):
            return ApiError(403, "Not logged in, or this user may not do that.",
                           "Open the page again, with its token.")  # fmt: skip
        case web.HTTPError():
            return ApiError(error.status_code, error.log_message or error.reason or str(error))
    return ApiError(500, "The server extension of nbmgpu failed.", "The server's log has details.")
