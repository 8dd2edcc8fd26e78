"""The part of the Hugging Face Hub's HTTP protocol that pushing and loading use, without Xet, over repositories in memory.

Paths and fields are those that huggingface_hub 2.4 sends and reads. A commit is made whole or not at all.
"""

import asyncio
import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Body, Depends, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse

from .cards import card_problem

LFS_SUFFIXES = (".parquet", ".arrow", ".safetensors", ".bin", ".pt")
Json = Annotated[dict[str, Any], Body()]


class RefusalError(Exception):
    """An answer other than success; `code` is the Hub's X-Error-Code, which clients turn into exception classes."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class File:
    """A file of a commit: its SHA-256, its size, and its id in Git (of an LFS file: the SHA-256 again)."""

    sha256: str
    size: int
    oid: str
    lfs: bool


@dataclass
class Repository:
    """Commits by id, each with its files by path; branches and tags by name."""

    private: bool = False
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, File]) -> str:
        """Put a branch at a new commit."""
        made = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits[made] = files
        self.names[branch] = made
        return made

    def at(self, revision: str) -> str:
        """The commit of a branch, a tag or an id."""
        commit = self.names.get(revision, revision)
        if commit not in self.commits:
            raise RefusalError(404, f"no revision {revision}", "RevisionNotFound")
        return commit


class Store:
    """All repositories, the contents of their files in a folder by SHA-256, and what a test has ordered to go wrong."""

    def __init__(self, blobs: Path) -> None:
        self.blobs = blobs
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.failures: dict[str, tuple[int, int]] = {}
        self.pauses: set[str] = set()
        self.waiting: set[str] = set()
        self.working = 0  # uploads and commits that are under way

    async def reach(self, point: str) -> None:
        """Fail or wait at a point, once, where a test has ordered it."""
        after, status = self.failures.pop(point, (0, 0))
        if status and not after:
            raise RefusalError(status, f"ordered failure at {point}")
        if status:
            self.failures[point] = after - 1, status
        if point in self.pauses:
            self.pauses.remove(point)
            self.waiting.add(point)
            while point in self.waiting:
                await asyncio.sleep(0.01)

    def keep(self, content: bytes, lfs: bool = False) -> File:
        """Store a content."""
        sha256 = hashlib.sha256(content).hexdigest()
        (self.blobs / sha256).write_bytes(content)
        oid = sha256 if lfs else hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return File(sha256, len(content), oid, lfs)

    def changed(self, files: dict[str, File], operation: dict[str, Any]) -> dict[str, File]:
        """The files after one operation of a commit."""
        value, path = operation["value"], operation["value"]["path"].rstrip("/")
        if operation["key"] == "file":
            return files | {path: self.keep(base64.b64decode(value["content"], validate=True))}
        if operation["key"] == "lfsFile":
            if not (self.blobs / value["oid"]).is_file():
                raise RefusalError(400, f"LFS pointer pointed to a file that does not exist: {value['oid']}")
            return files | {path: self.keep((self.blobs / value["oid"]).read_bytes(), lfs=True)}
        assert operation["key"] in ("deletedFile", "deletedFolder"), operation
        left = {name: file for name, file in files.items() if name != path and not name.startswith(f"{path}/")}
        if left == files:
            raise RefusalError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        return left


def listing(files: dict[str, File], folder: str = "", recursive: bool = True) -> list[dict[str, Any]]:
    """What lies in a folder (``""``: the root), folders first."""
    prefix = f"{folder}/" if folder else ""
    inside = {path.removeprefix(prefix): file for path, file in sorted(files.items()) if path.startswith(prefix)}
    if folder and not inside:
        raise RefusalError(404, f"{folder} does not exist", "EntryNotFound")
    folders = dict.fromkeys(str(parent) for path in inside for parent in reversed(Path(path).parents) if parent.name)
    entries = [{"type": "directory", "path": prefix + path, "size": 0, "oid": path} for path in folders]
    for path, file in inside.items():
        lfs = {"lfs": {"oid": file.sha256, "size": file.size, "pointerSize": 134}} if file.lfs else {}
        entries.append({"type": "file", "path": prefix + path, "size": file.size, "oid": file.oid, **lfs})
    return [entry for entry in entries if recursive or "/" not in str(entry["path"]).removeprefix(prefix)]


def make_app(store: Store) -> FastAPI:
    """The Hub's routes over a store."""
    app = FastAPI(openapi_url=None)
    base = "/api/{kind}/{owner}/{name}"

    def find(kind: str, owner: str, name: str) -> Repository:
        if (kind, f"{owner}/{name}") not in store.repositories:
            raise RefusalError(404, "Repository not found", "RepoNotFound")
        return store.repositories[kind, f"{owner}/{name}"]

    Found = Annotated[Repository, Depends(find)]

    @app.exception_handler(RefusalError)
    async def refuse(request: Request, refusal: RefusalError) -> JSONResponse:
        headers = {"X-Error-Code": refusal.code} if refusal.code else {}
        return JSONResponse({"error": str(refusal)}, refusal.status, headers)

    @app.post("/api/repos/create")
    def create(request: Request, order: Json) -> JSONResponse:
        kind, repo = f"{order.get('type', 'model')}s", f"{order.get('organization') or 'user'}/{order['name']}"
        # A client for which an existing repository is fine reads the same fields from the refusal.
        answer = {"url": f"{request.base_url}{'' if kind == 'models' else f'{kind}/'}{repo}", "id": repo, "name": repo}
        if (kind, repo) in store.repositories:
            return JSONResponse(answer | {"error": "You already created this repo"}, 409)
        store.repositories[kind, repo] = made = Repository(order.get("visibility") == "private")
        made.commit("main", {})
        return JSONResponse(answer)

    @app.post("/api/validate-yaml")
    def validate_yaml(card: Json) -> JSONResponse:
        problem = card_problem(card["content"], card.get("repoType", "model"))
        errors = [{"message": problem}] if problem else []
        return JSONResponse({"errors": errors, "warnings": []}, 400 if errors else 200)

    @app.get(base)
    @app.get(base + "/revision/{revision}")
    def info(repository: Found, owner: str, name: str, revision: str = "main") -> dict[str, Any]:
        commit = repository.at(revision)
        siblings = [{"rfilename": path} for path in sorted(repository.commits[commit])]
        about = {"author": owner, "private": repository.private, "gated": False, "disabled": False, "tags": []}
        return {"id": f"{owner}/{name}", "sha": commit, "siblings": siblings, **about}

    @app.get(base + "/tree/{revision}")
    @app.get(base + "/tree/{revision}/{folder:path}")
    def tree(repository: Found, revision: str, folder: str = "", recursive: bool = False) -> list[dict[str, Any]]:
        return listing(repository.commits[repository.at(revision)], folder.rstrip("/"), recursive)

    @app.post(base + "/paths-info/{revision}")
    async def paths_info(repository: Found, revision: str, request: Request) -> list[dict[str, Any]]:
        asked = parse_qs((await request.body()).decode()).get("paths", [])
        return [entry for entry in listing(repository.commits[repository.at(revision)]) if entry["path"] in asked]

    @app.post(base + "/preupload/{revision}")
    def preupload(repository: Found, revision: str, order: Json) -> dict[str, Any]:
        files, answers = repository.commits[repository.at(revision)], []
        for path, sample in ((asked["path"], base64.b64decode(asked["sample"])) for asked in order["files"]):
            lfs = path.endswith(LFS_SUFFIXES) or b"\0" in sample
            answers.append({"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False})
            if path in files and files[path].lfs == lfs:
                answers[-1]["oid"] = files[path].oid  # clients leave files with an equal oid out of the commit
        return {"files": answers}

    @app.post(base + "/branch/{branch}")
    def make_branch(repository: Found, branch: str, order: Json) -> None:
        repository.names[branch] = repository.at(order.get("startingPoint", "main"))

    @app.post(base + "/tag/{revision}")
    def make_tag(repository: Found, revision: str, order: Json) -> None:
        repository.names[order["tag"]] = repository.at(revision)

    @app.post(base + "/commit/{branch}")
    async def commit(repository: Found, kind: str, owner: str, name: str, branch: str, request: Request) -> dict:
        store.working += 1
        try:
            header, *operations = (json.loads(line) for line in (await request.body()).splitlines() if line)
            await store.reach("commit")
            head = repository.at(branch)
            if header["value"].get("parentCommit", head) != head:
                raise RefusalError(412, f"the branch is at {head}")
            files = repository.commits[head]
            for operation in operations:
                files = store.changed(files, operation)
            card = (store.blobs / files["README.md"].sha256).read_text("utf-8") if "README.md" in files else ""
            if problem := card_problem(card, kind.removesuffix("s")):
                raise RefusalError(400, f"Invalid metadata in README.md: {problem}")
            made = repository.commit(branch, files)
        finally:
            store.working -= 1
        url = f"{request.base_url}{'' if kind == 'models' else f'{kind}/'}{owner}/{name}/commit/{made}"
        return {"success": True, "commitOid": made, "commitUrl": url, "hookOutput": ""}

    @app.post("/{owner}/{name}.git/info/lfs/objects/batch")
    @app.post("/datasets/{owner}/{name}.git/info/lfs/objects/batch")
    def batch(request: Request, order: Json) -> dict[str, Any]:
        missing = [wanted for wanted in order["objects"] if not (store.blobs / wanted["oid"]).is_file()]
        for wanted in missing:
            wanted["actions"] = {"upload": {"href": f"{request.base_url}lfs/objects/{wanted['oid']}"}}
        return {"transfer": "basic", "objects": order["objects"]}

    @app.put("/lfs/objects/{oid}")
    async def put(oid: str, request: Request) -> None:
        store.working += 1
        try:
            content = b""
            async for chunk in request.stream():
                await store.reach("put" if not content else "")
                content += chunk
            if hashlib.sha256(content).hexdigest() != oid:
                raise RefusalError(422, f"not the content of {oid}")
            (store.blobs / oid).write_bytes(content)
        finally:
            store.working -= 1

    path = "/{owner}/{name}/resolve/{revision}/{path:path}"

    @app.api_route(path, methods=["GET", "HEAD"], response_model=None)
    @app.api_route(f"/datasets{path}", methods=["GET", "HEAD"], response_model=None)
    def resolve(owner: str, name: str, revision: str, path: str, request: Request) -> FileResponse:
        repository = find("datasets" if request.url.path.startswith("/datasets/") else "models", owner, name)
        commit = repository.at(revision)
        if path not in repository.commits[commit]:
            raise RefusalError(404, "Entry not found", "EntryNotFound")
        file = repository.commits[commit][path]
        headers = {"ETag": f'"{file.oid}"', "X-Repo-Commit": commit}
        return FileResponse(store.blobs / file.sha256, headers=headers, media_type="application/octet-stream")

    return app
