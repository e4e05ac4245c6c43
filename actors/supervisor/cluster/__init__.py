"""Topics with parts at several brokers: what this broker answers about them, and what it opens."""
