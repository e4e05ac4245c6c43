"""The topic actor: order of arrival, producer sequences and fan-out to channels."""
