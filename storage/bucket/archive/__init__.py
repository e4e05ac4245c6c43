"""The archive: sealed chunks in the bucket, and the cache of what is read from them."""
