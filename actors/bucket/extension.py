"""The points that the bucket fills: the storage of topics."""

from .topic.topic_bucket import TopicBucket

STORAGE = TopicBucket
