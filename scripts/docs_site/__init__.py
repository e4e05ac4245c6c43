"""Extensions of MkDocs for the documentation site."""
