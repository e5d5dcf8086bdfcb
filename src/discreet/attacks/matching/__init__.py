"""Gradient matching: candidate texts are optimized until their gradient matches the released one."""
