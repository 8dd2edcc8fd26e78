"""A checkpoint, its tokenizer, its code and its card on the Hub, in one commit: whole, or not there."""

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError  # of the HTTP library that this version of huggingface_hub uses
from huggingface_hub.utils import HFValidationError, validate_repo_id

IGNORED = (".*", "*/.*", "__pycache__/*")  # what a killed writer or an editor leaves beside the files
# What an earlier push may have left and this one does not write: whoever loads the model would get old weights or another's masks.
STALE = ("model.safetensors*", "model-*-of-*.safetensors", "custom_*.py")


@dataclass(frozen=True)
class Published:
    """What a push did.

    Args:
        url: of the commit that holds the checkpoint.
        commit: its id, for `revision=`.
        changed: False if the repository held all of it before, so that no commit was made.
    """

    url: str
    commit: str
    changed: bool


def check_repo(repo: str, what: str = "--repo") -> str:
    """`repo` itself if it is "user/name" with characters that the Hub allows; `ValueError` otherwise."""
    allowed = f"{what} is {repo!r}; allowed: user/name of letters, digits, '-', '_' and '.', at most 96 characters"
    if repo.count("/") != 1:
        raise ValueError(allowed)
    try:
        validate_repo_id(repo)
    except HFValidationError:
        raise ValueError(allowed) from None
    return repo


def push(checkpoint: Path, repo: str, *, private: bool = False, revision: str | None = None) -> Published:
    """Puts everything in `checkpoint` into the repository `repo` (made if need be) in one commit, and takes away weights and own masks of
    an earlier push that this one does not have. Other files of the repository stay.

    A push that fails or is killed leaves the repository as it was, or (where the answer alone was lost) as it should be; the same push
    again completes it. Nothing is committed where nothing has changed, or where somebody else committed meanwhile.

    Args:
        checkpoint: a folder with weights, configuration, code, tokenizer and card.
        repo: "user/name".
        private: make the repository private; one that exists and is public is refused.
        revision: the branch, made if need be; None: `main`.

    Raises:
        ValueError: the name is none, or the repository is public where `private` is asked for.
        OSError: the Hub cannot be reached, or refuses.
    """
    check_repo(repo)
    api = HfApi(library_name="hf_semfocus")
    try:
        repo = api.create_repo(repo, private=private or None, exist_ok=True).repo_id
        if private and not api.model_info(repo).private:
            raise ValueError(f"{repo} exists and is public; allowed with --private: a new or a private repository")
        if revision is not None and not revision.startswith("refs/pr/"):
            api.create_branch(repo, branch=revision, exist_ok=True)
        before = api.model_info(repo, revision=revision).sha
        done = api.upload_folder(
            repo_id=repo,
            folder_path=checkpoint,
            commit_message="Upload model, tokenizer and card",
            revision=revision,
            # Files that have not changed are left out, so a commit on top of somebody else's would mix the two.
            parent_commit=before,
            ignore_patterns=list(IGNORED),
            delete_patterns=list(STALE),
        )
    except (HTTPError, RuntimeError) as error:  # RuntimeError: what a failed upload of one large file is wrapped in
        reasons = (error, error.__cause__) if isinstance(error, RuntimeError) else (error,)
        said = " ".join(" ".join(str(reason).split()) or type(reason).__name__ for reason in reasons)
        what_to_do = "nothing is half-published, the same command again completes it"
        if any(getattr(getattr(reason, "response", None), "status_code", None) in (401, 403) for reason in reasons):
            what_to_do = f"log in with `hf auth login`, or use a token that may write to {repo}"
        raise OSError(f"{checkpoint} was not pushed to {repo}: {said}; {what_to_do}") from error
    return Published(str(done.commit_url), done.oid, done.oid != before)
