"""Sweeps of parameters: with fake trials that only write figures, and once with the smallest real training."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest

from fieldray.errors import UsageProblem
from fieldray_adapt.recipes.tables import RecipeDocument, RecipeProblems
from fieldray_cluster.workflow.report import write_report
from fieldray_cluster.workflow.run import read_task_states
from fieldray_cluster.workflow.sweep import run_sweep
from fieldray_cluster.workflow.trial_command import with_changed_keys
from program import start
from tiny_recipe import RECIPE, draw

pytestmark = [pytest.mark.adapt, pytest.mark.slow, pytest.mark.timeout(600)]

# A fake trial. The first one is good, and kills its worker once; the others are poor and never end.
TRIAL = """
import json, os, signal, sys, time
from pathlib import Path
order = json.loads(sys.argv[-1])
run = Path(order["changes"]["run"])
history = run / "train" / "history.json"
is_first = run.parent.name == "trial-0001"
with open(run.parents[2] / "log.txt", "a") as stream:
    stream.write(f"{run.parent.name} {order['step']}\\n")
if order["step"] == "run":
    folder = Path(order["changes"]["packs_folder"]) / "quick-0.1.0"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    sys.exit()
rows = []
history.parent.mkdir(parents=True, exist_ok=True)
for epoch in range(1, 4):
    rows.append({"epoch": epoch, "auc": [0.9 if is_first else 0.1 * epoch, None]})
    history.with_suffix(".new").write_text(json.dumps(rows))
    history.with_suffix(".new").replace(history)
if is_first and not (run / "again").exists():
    (run / "again").touch()
    os.kill(int(os.popen(f"ps -o ppid= -p {os.getppid()}").read()), signal.SIGKILL)
    time.sleep(60)
if not is_first:
    time.sleep(60)
"""

SWEEP = """
[cluster]
workers = 1
preemptible = true
[sweep]
recipe = "quick.toml"
trials = 3
[sweep.keys]
"training.learning_rate" = { low = 1e-4, high = 1e-1, scale = "log" }
"training.batch_size" = [8, 16]
"training.epochs" = 1
[sweep.pruning]
trials = 1
"""


def write(folder: Path, text: str = SWEEP) -> Path:
    (folder / "quick.toml").write_text(RECIPE, encoding="utf-8")
    (folder / "trial.py").write_text(TRIAL, encoding="utf-8")
    path = folder / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_sweep_with_a_lost_worker_ends_complete_and_a_second_one_does_nothing(tmp_path: Path) -> None:
    path = write(tmp_path)
    trial = (sys.executable, str(tmp_path / "trial.py"))
    assert run_sweep(path, say=lambda _: None, trial_command=trial) == "done"
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert log == ["trial-0001 train", "trial-0001 train", "trial-0002 train", "trial-0003 train", "trial-0001 run"]
    states = {state.task.name: state.status for state in read_task_states(path)}
    assert states == {"trial-0001": "done", "trial-0002": "pruned", "trial-0003": "pruned", "winner": "done"}

    said = list[str]()
    assert run_sweep(path, say=said.append, trial_command=trial) == "done" and said == ["Everything was done before."]
    (lock := tmp_path / "run" / "study.jsonl.lock").touch()  # the lock file of the working driver
    study = (tmp_path / "run" / "study.jsonl").read_bytes()
    page = write_report(path).read_text(encoding="utf-8")
    assert lock.exists() and (tmp_path / "run" / "study.jsonl").read_bytes() == study
    assert "<svg" in page and "<script" not in page and "3 trials of 3" in page
    board = json.loads((tmp_path / "run" / "leaderboard.json").read_text())
    assert [row["state"] for row in board] == ["done", "ended early", "ended early"] and board[0]["auc"] == 0.9
    assert board[0]["pack"] == "packs/trial-0001/quick-0.1.0" and board[0]["curve"] == [[1, 0.9], [2, 0.9], [3, 0.9]]
    values = board[0]["values"]
    assert 1e-4 <= values["training.learning_rate"] <= 0.1 and values["training.batch_size"] in (8, 16)
    assert values["training.epochs"] == 1 and repr(values["training.learning_rate"]) in page  # exact

    more = write(tmp_path, SWEEP.replace("trials = 3", "trials = 4"))
    assert run_sweep(more, say=said.append, trial_command=trial) == "done"
    assert (tmp_path / "run" / "log.txt").read_text().splitlines()[5:] == ["trial-0004 train"]
    (tmp_path / "clean.csv").touch()
    with pytest.raises(UsageProblem, match="other data"):
        run_sweep(more, say=said.append, trial_command=trial)
    (tmp_path / "clean.csv").unlink()
    other = write(tmp_path, SWEEP.replace("[8, 16]", "[8]"))
    with pytest.raises(UsageProblem, match="begun with other settings"):
        run_sweep(other, say=said.append, trial_command=trial)


def test_values_that_do_not_fit_the_recipe_are_reported_before_the_start(tmp_path: Path) -> None:
    text = SWEEP.replace("[8, 16]", "[8, 0]").replace('"training.epochs"', '"training.epoks"')
    text = text.replace("low = 1e-4, high = 1e-1, scale", "low = 1e-4, high = 1e-1, scale") + "\n"
    with pytest.raises(RecipeProblems) as found:
        run_sweep(write(tmp_path, text), say=lambda _: None)
    assert any("training.epoks is not known (is epochs meant?)" in line for line in found.value.lines)
    assert any("training.batch_size must be 1 or more, not 0" in line for line in found.value.lines)
    with pytest.raises(RecipeProblems, match="whole number"):
        whole = SWEEP.replace('"training.epochs" = 1', '"training.epochs" = { low = 1, high = 2 }')
        run_sweep(write(tmp_path, whole), say=lambda _: None)
    with pytest.raises(RecipeProblems, match="no table"):
        run_sweep(write(tmp_path, SWEEP.replace('"training.epochs"', '"run.x"')), say=lambda _: None)
    assert not (tmp_path / "run").exists()


def test_a_recipe_is_changed_in_memory_alone(tmp_path: Path) -> None:
    write(tmp_path)
    document = RecipeDocument.read(tmp_path / "quick.toml")
    found = with_changed_keys(document, {"training.learning_rate": 0.125, "lungs": "x", "prune.stop.iterations": 2})
    assert found.tables["training"]["learning_rate"] == 0.125 and found.tables["prune"]["stop"]["iterations"] == 2
    assert document.tables["training"]["learning_rate"] == 3e-3 and "lungs" not in document.tables
    assert found.text.startswith(document.text.rstrip()) and "# training.learning_rate = 0.125\n" in found.text


@pytest.mark.cluster
def test_the_smallest_real_sweep_ends_in_a_pack(tmp_path: Path) -> None:
    path = write(tmp_path, SWEEP.replace("trials = 3", "trials = 2").replace("workers = 1", "workers = 2"))
    draw(tmp_path, "clean", images=24, first=0)
    draw(tmp_path, "confounded", images=12, first=100)
    with start("workflow", "sweep", path) as driver:
        said = driver.communicate(timeout=500)
    assert driver.returncode == 0, said
    (best,) = (row for row in json.loads((tmp_path / "run" / "leaderboard.json").read_text()) if row["is_best"])
    pack = tmp_path / "run" / best["pack"]
    assert (pack / "manifest.sig").is_file()
    run = tmp_path / "run" / "tasks" / best["trial"] / "run"
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["training"]["learning_rate"] == best["values"]["training.learning_rate"]
    assert "# Changed for a trial of a sweep:" in (run / "recipe.toml").read_text()
    assert not [child for child in psutil.Process().children(recursive=True) if "trial" in " ".join(child.cmdline())]
