"""The local-privacy server, which never sees text, and the client that protects before it sends."""
