"""What Hypothesis would fail for on a machine that is slow or busy: an example of 0.2 s, and to make one."""

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
