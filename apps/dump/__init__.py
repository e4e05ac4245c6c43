"""Any file of ours or of nsqd's as readable lines: each kind a walk that yields records, and goes on behind what is damaged."""
