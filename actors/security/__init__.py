"""Security: access file, permissions, CURVE authentication, exposure and the audit log."""
