"""The documentation site: what MkDocs cannot do by itself."""
