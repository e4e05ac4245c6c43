"""Integrations: ZSQ with databases, task queues and tracing. Each needs the extra of its name."""
