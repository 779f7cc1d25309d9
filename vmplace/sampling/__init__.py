"""What was touched: one file a source (``source_*``) or a set of counters (``counters_*``)."""
