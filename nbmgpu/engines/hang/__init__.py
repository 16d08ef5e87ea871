"""Ranks that make no progress: how that is noticed, and where and why each of them waits."""
