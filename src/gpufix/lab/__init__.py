"""The practice lab: the incident as a small model, served as a real API and a sandbox host. Only ``cli`` imports it."""
