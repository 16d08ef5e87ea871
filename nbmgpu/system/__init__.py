"""The operating system: processes, resource limits, memory that processes share."""
