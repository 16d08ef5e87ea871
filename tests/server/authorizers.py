"""Authorizers that a server's admin could have: who is logged in may read, or nothing at all."""

from jupyter_server.auth.authorizer import Authorizer


class ReadOnlyAuthorizer(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return resource != "nbmgpu" or action == "read"


class DenyAllAuthorizer(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return resource != "nbmgpu"
