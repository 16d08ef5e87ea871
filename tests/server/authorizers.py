"""Authorizers: logged-in users may only read, or may do nothing."""

from jupyter_server.auth.authorizer import Authorizer


class ReadOnlyAuthorizer(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return resource != "nbmgpu" or action == "read"


class DenyAllAuthorizer(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return resource != "nbmgpu"
