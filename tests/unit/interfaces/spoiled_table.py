"""Which test reads what a command prints or writes, and which holds its JSON to the schema?

Commands whose output is in tests/data/golden/scripts are not named here.
"""

HERE = "tests/unit/interfaces"
SWEEPS = "tests/fleet/test_sweep.py"
POLICY = f"{HERE}/test_policy_commands.py"
RECORDING = f"{HERE}/test_recording_commands.py"

OUTPUT = {
    "calibrate": f"{HERE}/test_calibrate_command.py::test_what_was_measured_is_printed_and_shown_again",
    "demo": f"{HERE}/test_golden.py::test_the_demo_reads_as_it_was_looked_through",
    "doctor": f"{HERE}/test_doctor.py::test_the_exit_code_tells_whether_the_agent_can_work",
    "install": f"{HERE}/test_install.py::test_what_install_writes_it_names",
    "policy apply": f"{POLICY}::test_strict_numatune_is_made_restrictive_for_the_next_start",
    "policy get": f"{POLICY}::test_what_is_set_is_got",
    "policy set": f"{POLICY}::test_a_key_is_unset_and_the_policy_taken_out",
    "record": f"{RECORDING}::test_a_file_of_perf_becomes_a_recording_that_tells_the_same",
    "replay": f"{RECORDING}::test_a_recording_is_replayed_without_guests_or_root",
    "sweep": f"{SWEEPS}::test_what_is_there_is_not_done_again",
    "sweep-report": f"{SWEEPS}::test_the_report_answers_by_the_rows",
    "uninstall": f"{HERE}/test_install.py::test_what_uninstall_removes_it_names",
}
"""They print in the test's own process."""
WORK = {
    "kube features": "tests/unit/test_kube_features.py::test_one_file_is_written_for_one_look",
    "report": f"{HERE}/test_report.py::test_the_oracles_shares_are_a_map_and_a_table",
    "simulate": "tests/unit/simulate/test_commands.py::test_simulate_writes_a_row_of_the_benchs_shape",
}
"""They write files."""
PROCESSES = {
    "metrics dashboard": f"{HERE}/test_metrics.py::test_the_dashboards_are_printed_as_they_are_shipped",
    "metrics print": f"{HERE}/test_metrics.py::test_print_is_what_prometheus_reads_back",
    "metrics rules": f"{HERE}/test_metrics.py::test_the_rules_are_printed_as_promtool_checks_them",
    "metrics serve": f"{HERE}/test_metrics.py::test_serve_answers_scrapes_until_sigterm",
    "metrics write": f"{HERE}/test_metrics.py::test_a_file_is_written_whole_and_readable",
}
"""They run in processes of their own."""
SERVICES = {
    "kube agent": "tests/kube/test_node_agent.py::test_annotations_reach_the_agent_and_follow_changes",
    "openstack publish": "tests/cloud/test_placement.py::"
    "test_the_agent_does_not_notice_that_placement_is_killed",
    "openstack withdraw": "tests/cloud/test_placement.py::test_withdraw_tells_how_many_it_removed",
}
"""They need a cloud (make test-cloud, make test-kube)."""
SCHEMAS = {
    "calibrate": OUTPUT["calibrate"],
    "demo": f"{HERE}/test_demo.py::test_what_is_printed_is_of_its_schema",
    "doctor": f"{HERE}/test_json_schemas.py::test_doctor_is_of_its_schema",
    "install": OUTPUT["install"],
    "policy apply": f"{POLICY}::test_what_apply_prints_is_of_its_schema",
    "policy get": f"{POLICY}::test_what_get_prints_is_of_its_schema",
    "policy set": f"{POLICY}::test_what_set_prints_is_of_its_schema",
    "record": OUTPUT["record"],
    "replay": OUTPUT["replay"],
    "simulate": WORK["simulate"],
    "sweep": OUTPUT["sweep"],
    "sweep-report": f"{SWEEPS}::test_the_report_is_of_its_schema",
    "uninstall": OUTPUT["uninstall"],
}
"""Whose JSON is in no golden file."""
