"""A run from its configuration to its record: what it reads, and how often."""

from hifi_cli.runs import plan
from hifi_cli.runs.run import run
from hifi_cli.tasks import task_spec


def test_a_run_loads_its_task_once(make, workspace, monkeypatch):
    """Whatever it needs of the task: its head, its tokens, its rows, its digest and its metrics."""
    load = task_spec.load
    loaded = []

    def note(name):
        loaded.append(name)
        return load(name)

    monkeypatch.setattr(task_spec, "load", note)
    assert run(make("hifi-layerwise", "epochs=1"), workspace).is_done
    assert loaded == ["rte"]


def test_a_metric_that_the_configuration_names_changes_no_digest_of_the_task(make, workspace):
    result = run(make("bitfit", "epochs=1", "primary_metric=pearson", task="stsb"), workspace)
    task = task_spec.load("stsb")
    assert result.primary_metric == "pearson" != task.primary
    assert result.task_digest == task_spec.task_digest(task)


def test_plans_of_runs_with_models_of_one_size_build_the_model_once(make, workspace, monkeypatch):
    """Two seeds, two rates and two tasks of two classes: one model for each method."""
    build = plan.load_backbone_on_meta
    built = []

    def note(backbone, **arguments):
        built.append(backbone.name)
        return build(backbone, **arguments)

    monkeypatch.setattr(plan, "load_backbone_on_meta", note)
    planner = plan.Planner(workspace)
    methods = ("full-ft", "lora", "hifi-layerwise")
    for method in methods:
        sizes = [dict(planner.plan(make(method)).lines)["parameters"]]
        sizes.append(dict(planner.plan(make(method, seed=2)).lines)["parameters"])
        sizes.append(dict(planner.plan(make(method, "learning_rate=0.5")).lines)["parameters"])
        sizes.append(dict(planner.plan(make(method, task="cola")).lines)["parameters"])
        assert len(set(sizes)) == 1
    assert built == ["tiny-bert"] * len(methods)
    # A regression has one output, and fewer heads have fewer rows.
    planner.plan(make("hifi-layerwise", task="stsb"))
    planner.plan(make("hifi-layerwise", "heads.k=1"))
    assert len(built) == len(methods) + 2
