"""The workloads, one module each with ``measure(rounds) -> list[Result]``."""
