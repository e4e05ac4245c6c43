"""The storage of a topic and the bucket: shipping, and the lease of the primary."""
