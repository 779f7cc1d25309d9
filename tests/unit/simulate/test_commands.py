import json
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from tests.unit.interfaces.test_json_schemas import errors
from tests.unit.simulate.small_trace import private_pages
from vmplace.interfaces.cli import cli

LAB = Path(__file__).parents[3] / "lab/topologies"


def test_simulate_writes_a_row_of_the_benchs_shape(tmp_path: Path):
    np.savez(tmp_path / "t.npz", **private_pages())
    out = tmp_path / "out.json"
    arguments = ["simulate", "--host", str(LAB / "n4-full.toml"), "--guest", f"db={tmp_path}/t.npz,vcpus=4"]
    answer = CliRunner().invoke(cli, [*arguments, "--source", "ad", "--json", str(out)])
    assert answer.exit_code == 0, answer.output
    row = json.loads(out.read_text())
    assert (row["host"], row["mix"], row["policy"], row["source"]) == ("n4-full", "db=t", "vmplace", "ad")
    assert {"run_time_s", "lar", "mc_imbalance", "oracle_share", "worst_guest_slowdown"} <= set(row)
    assert row["guests"]["db"]["run_time_s"] == row["run_time_s"] > 0
    assert errors("simulate", row) == []
