"""Inbox: handle each message exactly once in a database (apps/integrations/database/inbox.py)."""

from ..apps.integrations.database.inbox import Inbox, Positions

__all__ = ["Inbox", "Positions"]
