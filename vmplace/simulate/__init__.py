"""What would a policy do?  Recorded traces on a modelled host; no lab, no guests.  See docs/simulate.md."""
