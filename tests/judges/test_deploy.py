"""The Kubernetes manifests of examples/deploy, validated by kubernetes-validate with the schemas of Kubernetes."""

import subprocess

import pytest
import yaml

from tests.judges.programs import python_program
from tests.servers.processes import ROOT

MANIFESTS = (ROOT / "examples" / "deploy" / "kubernetes.yaml").read_text(encoding="utf-8")


def validated(manifests: str) -> subprocess.CompletedProcess[str]:
    """Validate manifests against the newest schemas; a property that they do not have is an error."""
    command = [python_program("kubernetes-validate"), "--strict", "-"]
    return subprocess.run(command, input=manifests, capture_output=True, text=True, timeout=120, check=False)


def test_the_manifests_are_valid_for_the_newest_kubernetes() -> None:
    """The container, compose and systemd files in examples/deploy start servers that pass their health checks;
    the manifests are valid for Kubernetes."""
    done = validated(MANIFESTS)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("passed for resource") == len(list(yaml.safe_load_all(MANIFESTS))) > 3


@pytest.mark.parametrize(
    ("right", "wrong"), [("terminationGracePeriodSeconds", "terminationGrace"), ("containerPort: ", "containerPort: x")]
)
def test_a_misspelt_property_and_a_wrong_type_are_rejected(right: str, wrong: str) -> None:
    assert right in MANIFESTS
    assert validated(MANIFESTS.replace(right, wrong)).returncode != 0
