"""Runs on the nodes of a Ray cluster.

The *head* of a run (see ``nbmgpu.engines.multi_node``) is a process on the notebook's machine and a
driver of the cluster.  It reserves a placement group, and starts an actor on each node, which
starts a node launcher there.  Nodes that do not see the run folder get a copy of it, which the
actor and the head keep in step.
"""
