"""An example: refresh what is due, whenever something is.

Put this file and driftline_sensor.py into the folder of DAGs. Variables of Airflow name the file
and the command: driftline_config, driftline_command.
"""

from __future__ import annotations

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from driftline_sensor import DriftlineDueSensor

CONFIG = "{{ var.value.get('driftline_config', '/etc/driftline/warehouse.toml') }}"
COMMAND = "{{ var.value.get('driftline_command', 'driftline') }}"

with DAG("driftline", schedule="@continuous", max_active_runs=1, catchup=False) as dag:
    due = DriftlineDueSensor(task_id="due", config=CONFIG, command=COMMAND)
    # It decides again: exit code 0 if nothing is due any more.
    refresh = BashOperator(
        task_id="refresh", bash_command=f"{COMMAND} --config {CONFIG} refresh --due --json"
    )
    due >> refresh
