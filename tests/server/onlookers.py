"""Authorizers that a server's admin could have: who is logged in may read, or nothing at all."""

from jupyter_server.auth.authorizer import Authorizer


class Onlookers(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return resource != "nbmgpu" or action == "read"


class Nobody(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return resource != "nbmgpu"
