"""The part of the Hugging Face Hub's HTTP protocol that pushing and loading use, without Xet, over repositories in memory.

Paths and fields are those that huggingface_hub 2.4 sends and reads; every file is an LFS file. A commit is made whole or not at all.
"""

import asyncio
import collections
import contextlib
import hashlib
import json
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

import uvicorn
from fastapi import Body, Depends, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse

from .cards import card_problem

Json = Annotated[dict[str, Any], Body()]


class RefusalError(Exception):
    """An answer other than success; `code` is the Hub's X-Error-Code, which clients turn into exception classes."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class Repository:
    """Commits by id, each with the SHA-256 of its files by path; branches and tags by name."""

    private: bool = False
    commits: dict[str, dict[str, str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, str]) -> str:
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


class Pause:
    """A request that waits at a point until a test lets it go on."""

    def __init__(self) -> None:
        self.reached, self.over = threading.Event(), threading.Event()


class Hub:
    """A server on this machine, to ask, disturb and look into; `blobs`: a folder for the contents of files by SHA-256."""

    def __init__(self, blobs: Path) -> None:
        self.blobs = blobs
        self.repositories: dict[tuple[str, str], Repository] = {}
        #: What happens to the next requests that come to a point (put, with its first part; commit): a status to fail with, or a pause.
        self.orders: dict[str, list[int | Pause]] = collections.defaultdict(list)
        self.working = 0  # uploads and commits that are under way
        listener = socket.create_server(("127.0.0.1", 0))
        # asyncio sets this only where the socket names its protocol. Without it every body waits 40 ms for the client's ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(make_app(self), log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join(timeout=30)

    def state(self, repo: str, kind: str = "datasets") -> tuple[str, dict[str, str]]:
        """The commit of the main branch and its files."""
        repository = self.repositories[kind, repo]
        return repository.at("main"), repository.commits[repository.at("main")]

    def pause(self, point: str) -> Pause:
        """Order that the next request that comes to a point waits there."""
        self.orders[point].append(made := Pause())
        return made

    def wait_until_idle(self) -> None:
        """Return once no upload and no commit is under way."""
        deadline = time.monotonic() + 30
        while self.working:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    @contextlib.contextmanager
    def at_work(self):
        """An upload or a commit."""
        self.working += 1
        try:
            yield
        finally:
            self.working -= 1

    async def reach(self, point: str) -> None:
        """Fail or wait, where a test has ordered it."""
        order = self.orders[point].pop(0) if self.orders[point] else None
        if isinstance(order, Pause):
            order.reached.set()
            while not order.over.is_set():
                await asyncio.sleep(0.01)
        elif order is not None:
            raise RefusalError(order, f"ordered failure at {point}")

    def entries(self, files: dict[str, str], folder: str = "", recursive: bool = True) -> list[dict[str, Any]]:
        """What lies in a folder (``""``: the root), folders first."""
        prefix = f"{folder}/" if folder else ""
        inside = [path for path in sorted(files) if path.startswith(prefix)]
        if folder and not inside:
            raise RefusalError(404, f"{folder} does not exist", "EntryNotFound")
        folders = dict.fromkeys(str(parent) for path in inside for parent in Path(path).parents if parent.name)
        found = [
            {"type": "directory", "path": path, "size": 0, "oid": path} for path in folders if path.startswith(prefix)
        ]
        for path in inside:
            size = (self.blobs / files[path]).stat().st_size
            lfs = {"oid": files[path], "size": size, "pointerSize": 134}
            found.append({"type": "file", "path": path, "size": size, "oid": files[path], "lfs": lfs})
        return [entry for entry in found if recursive or "/" not in entry["path"].removeprefix(prefix)]


def make_app(hub: Hub) -> FastAPI:
    """The Hub's routes."""
    app = FastAPI(openapi_url=None)
    base = "/api/{kind}/{owner}/{name}"

    def find(kind: str, owner: str, name: str) -> Repository:
        if (kind, f"{owner}/{name}") not in hub.repositories:
            raise RefusalError(404, "Repository not found", "RepoNotFound")
        return hub.repositories[kind, f"{owner}/{name}"]

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
        if (kind, repo) in hub.repositories:
            return JSONResponse(answer | {"error": "You already created this repo"}, 409)
        hub.repositories[kind, repo] = made = Repository(order.get("visibility") == "private")
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
        return hub.entries(repository.commits[repository.at(revision)], folder.rstrip("/"), recursive)

    @app.post(base + "/paths-info/{revision}")
    async def paths_info(repository: Found, revision: str, request: Request) -> list[dict[str, Any]]:
        asked = parse_qs((await request.body()).decode()).get("paths", [])
        return [entry for entry in hub.entries(repository.commits[repository.at(revision)]) if entry["path"] in asked]

    @app.post(base + "/preupload/{revision}")
    def preupload(repository: Found, revision: str, order: Json) -> dict[str, Any]:
        files, answers = repository.commits[repository.at(revision)], []
        for path in (asked["path"] for asked in order["files"]):
            answers.append({"path": path, "uploadMode": "lfs", "shouldIgnore": False})
            if path in files:
                answers[-1]["oid"] = files[path]  # clients leave files with an equal oid out of the commit
        return {"files": answers}

    @app.post(base + "/branch/{branch}")
    def make_branch(repository: Found, branch: str, order: Json) -> None:
        repository.names[branch] = repository.at(order.get("startingPoint", "main"))

    @app.post(base + "/tag/{revision}")
    def make_tag(repository: Found, revision: str, order: Json) -> None:
        repository.names[order["tag"]] = repository.at(revision)

    @app.post(base + "/commit/{branch}")
    async def commit(repository: Found, kind: str, owner: str, name: str, branch: str, request: Request) -> dict:
        with hub.at_work():
            header, *operations = (json.loads(line) for line in (await request.body()).splitlines() if line)
            await hub.reach("commit")
            head = repository.at(branch)
            if header["value"].get("parentCommit", head) != head:
                raise RefusalError(412, f"the branch is at {head}")
            files = dict(repository.commits[head])
            for operation in operations:
                if operation["key"] == "lfsFile":
                    files[operation["value"]["path"]] = operation["value"]["oid"]
                else:
                    assert operation["key"] == "deletedFile", operation
                    del files[operation["value"]["path"]]
            card = (hub.blobs / files["README.md"]).read_text("utf-8") if "README.md" in files else ""
            if problem := card_problem(card, kind.removesuffix("s")):
                raise RefusalError(400, f"Invalid metadata in README.md: {problem}")
            made = repository.commit(branch, files)
        url = f"{request.base_url}{'' if kind == 'models' else f'{kind}/'}{owner}/{name}/commit/{made}"
        return {"success": True, "commitOid": made, "commitUrl": url, "hookOutput": ""}

    @app.post("/{owner}/{name}.git/info/lfs/objects/batch")
    @app.post("/datasets/{owner}/{name}.git/info/lfs/objects/batch")
    def batch(request: Request, order: Json) -> dict[str, Any]:
        for wanted in order["objects"]:
            if not (hub.blobs / wanted["oid"]).is_file():
                wanted["actions"] = {"upload": {"href": f"{request.base_url}lfs/objects/{wanted['oid']}"}}
        return {"transfer": "basic", "objects": order["objects"]}

    @app.put("/lfs/objects/{oid}")
    async def put(oid: str, request: Request) -> None:
        with hub.at_work():
            content = b""
            async for chunk in request.stream():
                await hub.reach("put" if not content else "")
                content += chunk
            if hashlib.sha256(content).hexdigest() != oid:
                raise RefusalError(422, f"not the content of {oid}")
            (hub.blobs / oid).write_bytes(content)

    path = "/{owner}/{name}/resolve/{revision}/{path:path}"

    @app.api_route(path, methods=["GET", "HEAD"], response_model=None)
    @app.api_route(f"/datasets{path}", methods=["GET", "HEAD"], response_model=None)
    def resolve(owner: str, name: str, revision: str, path: str, request: Request) -> FileResponse:
        repository = find("datasets" if request.url.path.startswith("/datasets/") else "models", owner, name)
        commit = repository.at(revision)
        if path not in repository.commits[commit]:
            raise RefusalError(404, "Entry not found", "EntryNotFound")
        sha256 = repository.commits[commit][path]
        headers = {"ETag": f'"{sha256}"', "X-Repo-Commit": commit}
        return FileResponse(hub.blobs / sha256, headers=headers, media_type="application/octet-stream")

    return app
