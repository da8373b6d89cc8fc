"""Results in a dataset repository of the Hugging Face hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hifi_cli import hub
from hifi_cli.errors import ConflictError, MissingError, RunFailed
from hifi_cli.records.run_directory import DELTA
from hifi_cli.runs.results_source import Item, StoredContent
from hifi_cli.version import __version__

PREFIX = "hub:"
_PRECONDITION_FAILED = 412  # the hub's answer if the repository has a newer commit than `parent_commit`


@dataclass(frozen=True)
class HubRepository:
    """A dataset repository `owner/name`, as the destination of a push or the source of a pull.

    Attributes:
        create_pr: push as a pull request.
    """

    name: str
    create_pr: bool = False

    @cached_property
    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(library_name="hifi-cli", library_version=__version__)

    @cached_property
    def commit(self) -> str:
        """The commit that is read, and that a push builds on.

        Raises:
            MissingError: there is no such repository, or the hub is not available.
        """
        if hub.is_offline():
            raise MissingError(f"{PREFIX}{self.name}: HF_HUB_OFFLINE forbids network access; unset it")
        with self._errors("read"):
            return str(self._api.repo_info(self.name, repo_type="dataset", timeout=10).sha)

    @cached_property
    def _files(self) -> dict[str, Any]:
        """The files of the commit, by path."""
        commit = self.commit
        with self._errors("read"):
            tree = self._api.list_repo_tree(self.name, recursive=True, revision=commit, repo_type="dataset")
            return {entry.path: entry for entry in tree if hasattr(entry, "blob_id")}

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def is_same(self, path: str, content: StoredContent) -> bool:
        """Whether the file at a path has this content; the hub's checksums say it, and nothing is downloaded."""
        file = self._files[path]
        return bool(file.lfs.sha256 == content.sha256 if file.lfs else file.blob_id == content.git_blob_id)

    def location(self, path: str) -> str:
        """A path as messages name it."""
        return f"{PREFIX}{self.name}/{path}"

    def add(self, items: list[tuple[Item, list[str]]]) -> None:
        """Upload files in one commit on top of `commit`, so that a commit of somebody else is never overwritten.

        Raises:
            ConflictError: there is a newer commit.
            RunFailed: the upload failed.
        """
        from huggingface_hub import CommitOperationAdd

        operations = [
            CommitOperationAdd(path, source if isinstance(source, bytes) else str(source))
            for item, paths in items
            for path in paths
            for source in [item.contents[path].source]
        ]
        with self._errors("write"):
            self._api.create_commit(
                self.name,
                operations,
                commit_message=f"hifi results push: {len(items)} runs and files",
                repo_type="dataset",
                create_pr=self.create_pr,
                parent_commit=self.commit,
            )

    def download(self, *, weights: bool) -> Path:
        """Download the repository into the hub's cache; a download that was interrupted is resumed.

        Args:
            weights: the deltas too.

        Raises:
            MissingError: there is no such repository, or the hub is not available.
        """
        commit = self.commit
        with self._errors("read"):
            folder = self._api.snapshot_download(
                self.name,
                repo_type="dataset",
                revision=commit,
                allow_patterns=["runs/*", "heads/*", "scores/*", "tables/*"],
                ignore_patterns=None if weights else [f"*/{DELTA}"],
            )
        return Path(folder)

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Turn the errors of the hub into ours."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            yield
        except RepositoryNotFoundError:
            raise MissingError(
                f"no dataset repository '{self.name}' that you may {doing}: log in (hf auth login), or create it"
                f" (hf repos create {self.name} --type dataset)"
            ) from None
        except Exception as error:  # network errors have no common base class
            if getattr(getattr(error, "response", None), "status_code", None) == _PRECONDITION_FAILED:
                raise ConflictError(f"{PREFIX}{self.name} has a newer commit than the one read; repeat the command") from None
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
            raise RunFailed(f"cannot {doing} {PREFIX}{self.name} ({reason}); repeat the command") from None
