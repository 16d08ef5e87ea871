"""The operating system: processes, resource limits, shared memory, sockets, files of libraries."""
