"""`hifi verify`: whether the stored results of finished runs hold."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def verify(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Directories of runs or of results; default: --results-dir.")
    ] = None,
    backbone: options.Backbone = None,
    trust: options.Trust = False,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Check that a run's files agree, rebuild its model and evaluate it again; exit code 1 if a stored result does not hold.

    Exit code 3 if a run could not be verified because weights, data or a backbone are missing.
    """
    from hifi_cli.cli.show import metrics_now_and_stored, print_json, print_verification
    from hifi_cli.errors import MissingError, RunFailed
    from hifi_cli.records.run_checks import VerificationResult
    from hifi_cli.runs.resources import ResourceCache
    from hifi_cli.runs.verify import finished_directories
    from hifi_cli.runs.verify import verify as verify_run
    from hifi_cli.wording import first_of

    directories = [pair for path in paths or [results_dir] for pair in finished_directories(path)]
    resources = ResourceCache(results_dir, data_dir, backbone, trust)
    verifications = []
    for directory, parent in directories:
        verification = verify_run(directory, resources, data_dir=data_dir, results_dir=parent)
        verifications.append(verification)
        if format == "text":
            print_verification(verification)
    if format == "json":
        print_json(
            [
                {
                    "path": verification.path,
                    "verdict": verification.verdict,
                    "problems": verification.problems,
                    "metrics": metrics_now_and_stored(verification.evaluation) if verification.evaluation else {},
                    "largest_logit_difference": verification.evaluation.largest_difference if verification.evaluation else None,
                }
                for verification in verifications
            ]
        )
    by_verdict = {
        verdict: [str(verification.path) for verification in verifications if verification.verdict is verdict]
        for verdict in VerificationResult
    }
    if differing := by_verdict[VerificationResult.DIFFERS]:
        raise RunFailed(
            f"the stored results of {len(differing)} of {len(verifications)} runs do not hold ({first_of(differing)});"
            " do not use them, or train them again with --force"
        )
    if missing := by_verdict[VerificationResult.NOT_VERIFIED]:
        raise MissingError(
            f"{len(missing)} of {len(verifications)} runs could not be verified ({first_of(missing)}); the output says"
            " what each requires"
        )
