"""Outbox: publish the rows of a table without loss (apps/integrations/database/outbox.py)."""

from ..apps.integrations.database.outbox import Outbox

__all__ = ["Outbox"]
