"""Measurements. Each module measures one side of the broker and adds rows to a report."""
