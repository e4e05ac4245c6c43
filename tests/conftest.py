"""For all tests: how hypothesis searches."""

import os

from hypothesis import HealthCheck, settings

# No deadline: a test that waits for its turn on a busy machine is not slow. In continuous integration the same examples each
# time, so that a failure there is of the change; elsewhere new ones.
settings.register_profile(
    "zsq", deadline=None, derandomize="CI" in os.environ, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("zsq")
