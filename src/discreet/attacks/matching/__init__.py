"""Gradient matching: candidate texts are changed until their gradient is the released one."""
