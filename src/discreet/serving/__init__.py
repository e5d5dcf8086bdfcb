"""Serve the head of a locally private run over HTTP, and ask such a server; these are the paths it answers at."""

ANSWERS, ABOUT, HEALTH, OPENAPI = "/v1/answers", "/v1/about", "/health", "/openapi.json"
