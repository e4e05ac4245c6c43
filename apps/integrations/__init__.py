"""Integrations: ZSQ in frameworks for task queues and tracing. Each needs the extra of its name."""
