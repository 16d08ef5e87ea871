"""How a request is refused: a status, what happened, and what to do instead."""

from __future__ import annotations

from tornado import web

from nbmgpu.errors import NbmgpuError
from nbmgpu.runs.run import runs_root

from .payloads import Problem
from .run_folders import NoSuchRunError

LIST = "The list of runs has those that there are."


class Refusal(web.HTTPError):
    """An answer that is no success, in words for people."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        """Answer with ``status``, a sentence, and what to do, if anything can be done."""
        super().__init__(status)
        self.problem = Problem(message, hint)


def refusal_of(error: BaseException | None) -> Refusal:
    """Return how ``error``, whatever it is, is told to the browser."""
    match error:
        case Refusal():
            return error
        case NoSuchRunError():
            return Refusal(404, f"{error}.", LIST)
        case NbmgpuError():
            message, _, hint = str(error).partition("\nTry: ")
            return Refusal(409, message, hint)
        case FileNotFoundError():
            return Refusal(404, f"{error.filename} is gone: the run was deleted meanwhile.", LIST)
        case PermissionError():
            what = f"{error.filename or runs_root()} may not be read by this user."
            return Refusal(403, what, f"Look at who owns it: ls -ld '{runs_root()}'")
        case OSError():
            return Refusal(500, f"{error.filename or runs_root()}: {error.strerror or error}.")
        case web.HTTPError(status_code=403):
            return Refusal(403, "Nobody is logged in, or this user may not do that.",
                           "Open the page again, with its token.")  # fmt: skip
        case web.HTTPError():
            return Refusal(error.status_code, error.log_message or error.reason or str(error))
    return Refusal(500, "The server extension of nbmgpu failed.", "The server's log has details.")
