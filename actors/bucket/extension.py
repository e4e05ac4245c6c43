"""The extension points that the bucket fills. They are resolved when the core asks for them."""

from __future__ import annotations

from typing import Final

SERVICES: Final = f"{__package__}.archive_service:SERVICES"
SUPERVISOR: Final = f"{__package__}.supervision:BucketSupervision"
STORAGE: Final = f"{__package__}.topic.topic_bucket:TopicBucket"
SERVING: Final = f"{__package__}.channel_lease:ChannelLease"
STATISTICS: Final = f"{__package__}.statistics:STATISTICS"
ROLE: Final = f"{__package__}.archive_service:role"
COPY: Final = f"{__package__}.data_copy:copy_of"
DIRECTORIES: Final = f"{__package__}.data_copy:DIRECTORIES"
