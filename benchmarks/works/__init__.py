"""The works that are measured, a module each: ``measure(rounds) -> list[Result]``."""
