"""Measurements. Each module measures one aspect of the broker and adds rows to a report."""
