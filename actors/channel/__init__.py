"""The channel actor: leases, redelivery, ordering by key, filters and dead letters."""
