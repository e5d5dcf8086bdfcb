"""The privacy statement of a release, its exports, and policies that a gate checks."""
