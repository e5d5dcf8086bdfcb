"""Server and client for the head of a locally private run over HTTP; the paths of the service."""

ANSWERS, ABOUT, HEALTH, OPENAPI = "/v1/answers", "/v1/about", "/health", "/openapi.json"
ENCRYPTED = "/v1/encrypted"  # instead of the answers, with encrypted vectors
