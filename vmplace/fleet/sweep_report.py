"""Which guests gain, which policy, and what would a host type gain?  Three questions to a sweep's rows.

``gain`` is the share of the run time that goes away (traces: 0.1 is a tenth faster), against the same
recording on the same host under "none"; for recordings it is what the local access ratio grows by.  A
change below NOISE is none.
"""

from typing import Any, cast

from vmplace.fleet.sweep_results import not_of_a_sweep, parquet_file
from vmplace.fleet.views import SweepReport

NOISE = 0.01
_GAINS = """
CREATE TEMP VIEW good AS SELECT *{lacking} FROM read_parquet('{path}') WHERE error IS NULL;
CREATE TEMP VIEW gains AS
SELECT good.*, CASE good.kind
    WHEN 'trace' THEN 1 - good.run_time_s / none.run_time_s
    ELSE good.lar - good.lar_before END AS gain,
  none.run_time_s AS none_run_time_s
FROM good LEFT JOIN good AS none ON none.task = good.baseline
WHERE good.policy <> 'none';
"""
_QUESTIONS = {
    "guests": """
        WITH by_guest AS (
          SELECT kind, recording, host, policy, guest.name AS guest, guest.moved_bytes AS moved_bytes,
            CASE kind WHEN 'trace' THEN gain ELSE guest.lar - guest.lar_before END AS gain
          FROM (SELECT *, unnest(guests) AS guest FROM gains))
        SELECT kind, recording, guest, host, arg_max(policy, gain) AS best_policy, max(gain) AS gain,
          arg_max(moved_bytes, gain) AS moved_bytes
        FROM by_guest WHERE gain IS NOT NULL GROUP BY ALL ORDER BY kind, gain DESC, recording, guest, host""",
    "policies": """
        SELECT kind, policy, count(*) AS rows, avg(gain) AS mean_gain, median(gain) AS median_gain,
          min(gain) AS worst_gain, avg((gain > {noise})::INT) AS share_gaining,
          avg((gain < -{noise})::INT) AS share_losing
        FROM gains WHERE gain IS NOT NULL GROUP BY ALL ORDER BY kind, mean_gain DESC, policy""",
    "hosts": """
        WITH by_policy AS (
          SELECT kind, host, policy, avg(gain) AS gain, avg(run_time_s) AS run_time_s,
            avg(none_run_time_s) AS none_run_time_s, avg(mc_imbalance) AS mc_imbalance
          FROM gains WHERE gain IS NOT NULL GROUP BY ALL)
        SELECT kind, host, arg_max(policy, gain) AS best_policy, max(gain) AS mean_gain,
          arg_max(run_time_s, gain) AS run_time_s, any_value(none_run_time_s) AS none_run_time_s
        FROM by_policy GROUP BY ALL ORDER BY kind, mean_gain DESC, host""",
    "failed": """
        SELECT recording, host, policy, error FROM read_parquet('{path}')
        WHERE error IS NOT NULL ORDER BY ALL""",
}


def sweep_report(url: str) -> SweepReport:
    """Return the answers, a table each; raises VmplaceError."""
    with parquet_file(url) as (database, path):
        # A path of our own making: DuckDB takes no parameters in views.
        words = {"path": path, "noise": NOISE}
        try:
            names = database.execute("SELECT * FROM read_parquet($path) LIMIT 0", {"path": path}).description
            # Rows of an earlier release do not tell what their gain is against.
            words["lacking"] = "" if "baseline" in {name for name, *_ in names} else ", '' AS baseline"
            database.execute(_GAINS.format(**words))
            found = {name: _rows(database.execute(sql.format(**words))) for name, sql in _QUESTIONS.items()}
            return cast(SweepReport, found)
        except Exception as err:
            raise not_of_a_sweep(url, err, path) from err


def _rows(found: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in found.description]
    return [dict(zip(names, values, strict=True)) for values in found.fetchall()]
