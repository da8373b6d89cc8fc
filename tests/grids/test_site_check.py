"""A site's YAML is compared with Parsl's classes before anything starts, under `--print` too."""

import sys

import pytest

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.grids.site_check import check_site

pytest.importorskip("parsl")


@pytest.mark.parametrize("site", registry.names("sites"))
def test_the_sites_that_come_with_it_fit(site):
    check_site(site)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("provider: {kind: SlurmProvide}", "no class 'SlurmProvide'; did you mean 'SlurmProvider'"),
        ("provider: {init_blocks: 1}", "provider: Parsl has no class 'None'"),
        (
            "provider: {kind: SlurmProvider, partion: gpu}",
            "provider SlurmProvider: unknown argument 'partion'; did you mean 'partition'",
        ),
        (
            "provider: {kind: SlurmProvider, launcher: SrunLaunche}",
            "launcher: Parsl has no class 'SrunLaunche'; did you mean 'SrunLauncher'",
        ),
        (
            "provider: {kind: SlurmProvider, launcher: {kind: SrunLauncher, override: x}}",
            "launcher SrunLauncher: unknown argument 'override'; did you mean 'overrides'",
        ),
        (
            "provider: {kind: LocalProvider}\nexecutor: {available_accelerator: 4}",
            "executor: unknown argument 'available_accelerator'; did you mean 'available_accelerators'",
        ),
        ("provider: {kind: LocalProvider}\nexecutor: {label: mine}", "unknown argument 'label'"),
        ("provider: {kind: KubernetesProvider}", "the argument 'image' is required"),
    ],
)
def test_a_wrong_name_is_told_under_print(hifi, tmp_path, yaml, message):
    (tmp_path / "site.yaml").write_text(yaml)
    answer = hifi("grid demo --site site.yaml --print")
    assert answer.code == 2 and message in answer.err, answer.err
    assert answer.out == ""


def test_without_parsl_the_names_are_not_checked(monkeypatch, hifi, tmp_path):
    monkeypatch.setitem(sys.modules, "parsl", None)
    (tmp_path / "site.yaml").write_text("provider: {kind: SlurmProvide}")
    answer = hifi("grid demo --site site.yaml --print")
    assert answer.code == 0 and "Parsl is not installed here" in answer.err
    with pytest.raises(UsageError, match="unknown site 'slrm'; did you mean 'slurm'"):
        check_site("slrm")
