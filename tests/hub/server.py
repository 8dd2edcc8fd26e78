"""A Hub on this machine: the part of the Hugging Face Hub's HTTP protocol that pushing and loading use, without Xet.

Run as ``python -m tests.hub.server ROOT PORT`` (port 0: any free one). It prints its port, serves on 127.0.0.1 alone, keeps everything in
ROOT, and ends when its standard input is closed. Paths and fields are those that huggingface_hub 2.4 sends and reads.
"""

import asyncio
import base64
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse

from .cards import card_problem
from .storage import Commit, File, RefusalError, Store, check_path, git_oid, lfs_pointer

LFS_SUFFIXES = (".parquet", ".arrow", ".safetensors", ".bin", ".pt")
LFS_SIZE = 10 * 2**20
Json = Annotated[dict[str, Any], Body()]


class Kinds(StrEnum):
    """Kinds of repositories, as API paths spell them."""

    models = "models"
    datasets = "datasets"


class Faults:
    """Failures that a test orders: once, at a named point, after some successes; an HTTP status or the process's sudden end.

    Or a pause: the next request that comes to the point waits there until the test lets it go on.
    """

    def __init__(self) -> None:
        self._orders: dict[str, tuple[int, int | None]] = {}
        self._pauses: dict[str, asyncio.Event] = {}
        self._paused: dict[str, asyncio.Event] = {}

    def order(self, point: str, after: int, status: int | None) -> None:
        """Fail at `point` once it was passed `after` times, with `status`, or by ending the process (None)."""
        self._orders[point] = (after, status)

    def reach(self, point: str) -> None:
        """Called where a failure may be ordered."""
        if point not in self._orders:
            return
        left, status = self._orders.pop(point)
        if left > 0:
            self._orders[point] = (left - 1, status)
        elif status is None:
            os._exit(1)
        else:
            raise RefusalError(status, f"ordered failure at {point}")

    def order_pause(self, point: str) -> None:
        """Let the next request wait at `point`."""
        self._pauses[point] = asyncio.Event()

    async def pause(self, point: str) -> None:
        """Called where a pause may be ordered."""
        if point in self._pauses:
            event = self._paused[point] = self._pauses.pop(point)
            await event.wait()

    def is_paused(self, point: str) -> bool:
        """Whether a request waits at `point`."""
        return point in self._paused

    def go_on(self, point: str) -> None:
        """Let the request that waits at `point` go on."""
        self._paused.pop(point).set()


def is_lfs(path: str, size: int, sample: bytes) -> bool:
    """Whether the Hub would keep this file outside Git."""
    return path.endswith(LFS_SUFFIXES) or size >= LFS_SIZE or b"\0" in sample


def apply_operations(store: Store, files: dict[str, File], operations: Iterable[dict[str, Any]]) -> dict[str, File]:
    """The files after a commit's operations; a refusal if any of them cannot be done."""
    for operation in operations:
        value = operation["value"]
        path = check_path(value["path"].rstrip("/"))
        match operation["key"]:
            case "file":
                files[path] = store.keep(base64.b64decode(value["content"], validate=True))
            case "lfsFile":
                files[path] = store.lfs_file(value["oid"])
            case "deletedFile" if path in files:
                del files[path]
            case "deletedFolder" if any(name.startswith(f"{path}/") for name in files):
                files = {name: file for name, file in files.items() if not name.startswith(f"{path}/")}
            case "deletedFile" | "deletedFolder":
                raise RefusalError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
            case key:
                raise RefusalError(400, f"unknown operation {key!r}")
    return files


def file_entry(path: str, file: File) -> dict[str, Any]:
    """A file in a listing."""
    entry: dict[str, Any] = {"type": "file", "path": path, "size": file.size, "oid": file.git_oid}
    if file.lfs:
        pointer = len(lfs_pointer(file.sha256, file.size))
        entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": pointer}
    return entry


def folder_entry(path: str) -> dict[str, Any]:
    """A folder in a listing."""
    return {"type": "directory", "path": path, "size": 0, "oid": git_oid(path.encode())}


def listing(commit: Commit, folder: str, recursive: bool) -> list[dict[str, Any]]:
    """What lies in a folder (``""``: the root), folders first; a refusal if there is no such folder."""
    prefix = f"{folder}/" if folder else ""
    inside = {path.removeprefix(prefix): file for path, file in commit.files.items() if path.startswith(prefix)}
    if folder and not inside:
        raise RefusalError(404, f"{folder} does not exist", "EntryNotFound")
    folders = {
        "/".join(parts[:depth])
        for parts in (path.split("/") for path in inside)
        for depth in range(1, len(parts) if recursive else min(len(parts), 2))
    }
    files = {path: file for path, file in inside.items() if recursive or "/" not in path}
    return [folder_entry(prefix + path) for path in sorted(folders)] + [
        file_entry(prefix + path, file) for path, file in sorted(files.items())
    ]


def make_app(store: Store) -> FastAPI:
    """The Hub's routes over a store."""
    app = FastAPI(openapi_url=None)
    faults = Faults()
    add_repository_routes(app, store, faults)
    add_lfs_routes(app, store, faults)
    add_download_routes(app, store)

    @app.exception_handler(RefusalError)
    async def refuse(request: Request, refusal: RefusalError) -> JSONResponse:
        headers = {"X-Error-Message": " ".join(refusal.message.split())}
        if refusal.code:
            headers["X-Error-Code"] = refusal.code
        return JSONResponse({"error": refusal.message}, refusal.status, headers)

    @app.post("/faults")
    def order_fault(order: Json) -> None:
        faults.order(order["point"], order["after"], order["status"])

    @app.post("/pauses/{point}")
    async def order_pause(point: str) -> None:
        faults.order_pause(point)

    @app.get("/pauses/{point}")
    async def is_paused(point: str) -> bool:
        return faults.is_paused(point)

    @app.delete("/pauses/{point}")
    async def go_on(point: str) -> None:
        faults.go_on(point)

    return app


def add_repository_routes(app: FastAPI, store: Store, faults: Faults) -> None:
    """Repositories: making, describing, listing, and committing to them."""
    base = "/api/{kinds}/{owner}/{name}"

    @app.post("/api/repos/create")
    def create(request: Request, order: Json) -> JSONResponse:
        repo = f"{order.get('organization') or 'user'}/{order['name']}"
        kinds = Kinds(f"{order.get('type', 'model')}s")
        prefix = "" if kinds is Kinds.models else f"{kinds.value}/"
        # A client for which an existing repository is fine reads the same fields from the refusal.
        answer = {"url": f"{request.base_url}{prefix}{repo}", "id": repo, "name": repo}
        if store.create(kinds.value, repo, private=order.get("visibility") == "private"):
            return JSONResponse(answer)
        return JSONResponse(answer | {"error": "You already created this repo"}, 409)

    @app.post("/api/validate-yaml")
    def validate_yaml(card: Json) -> JSONResponse:
        problem = card_problem(card["content"], card.get("repoType", "model"))
        errors = [{"message": problem}] if problem else []
        return JSONResponse({"errors": errors, "warnings": []}, 400 if errors else 200)

    @app.get(base)
    @app.get(base + "/revision/{revision}")
    def info(kinds: Kinds, owner: str, name: str, revision: str = "main") -> dict[str, Any]:
        commit = store.commit_at(kinds.value, f"{owner}/{name}", revision)
        return {
            "id": f"{owner}/{name}",
            "author": owner,
            "sha": commit.id,
            "lastModified": commit.date,
            "private": store.is_private(kinds.value, f"{owner}/{name}"),
            "gated": False,
            "disabled": False,
            "tags": [],
            "siblings": [{"rfilename": path} for path in sorted(commit.files)],
        }

    @app.get(base + "/tree/{revision}")
    @app.get(base + "/tree/{revision}/{folder:path}")
    def tree(
        kinds: Kinds, owner: str, name: str, revision: str, folder: str = "", recursive: bool = False
    ) -> list[dict[str, Any]]:
        return listing(store.commit_at(kinds.value, f"{owner}/{name}", revision), folder.rstrip("/"), recursive)

    @app.post(base + "/paths-info/{revision}")
    async def paths_info(kinds: Kinds, owner: str, name: str, revision: str, request: Request) -> list[dict[str, Any]]:
        commit = store.commit_at(kinds.value, f"{owner}/{name}", revision)
        found = []
        for path in parse_qs((await request.body()).decode()).get("paths", []):
            if path in commit.files:
                found.append(file_entry(path, commit.files[path]))
            elif any(name.startswith(f"{path}/") for name in commit.files):
                found.append(folder_entry(path))
        return found

    @app.post(base + "/preupload/{revision}")
    def preupload(kinds: Kinds, owner: str, name: str, revision: str, order: Json) -> dict[str, Any]:
        files = store.commit_at(kinds.value, f"{owner}/{name}", revision).files
        answers = []
        for file in order["files"]:
            path = check_path(file["path"])
            lfs = is_lfs(path, file["size"], base64.b64decode(file["sample"]))
            answers.append({"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False})
            if path in files and files[path].lfs == lfs:
                # Clients leave files with an equal oid out of the commit.
                answers[-1]["oid"] = files[path].upload_oid
        return {"files": answers}

    @app.post(base + "/branch/{branch}")
    def make_branch(kinds: Kinds, owner: str, name: str, branch: str, order: Json) -> None:
        store.add_reference(kinds.value, f"{owner}/{name}", "refs", branch, order.get("startingPoint", "main"))

    @app.post(base + "/tag/{revision}")
    def make_tag(kinds: Kinds, owner: str, name: str, revision: str, order: Json) -> None:
        store.add_reference(kinds.value, f"{owner}/{name}", "tags", order["tag"], revision)

    @app.post(base + "/commit/{revision}")
    async def commit(kinds: Kinds, owner: str, name: str, revision: str, request: Request) -> dict[str, Any]:
        lines = [json.loads(line) for line in (await request.body()).splitlines() if line]
        if not lines or lines[0].get("key") != "header":
            raise RefusalError(400, "a commit begins with its header")
        for operation in lines[1:]:
            if operation["key"] == "file" and operation["value"]["path"] == "README.md":
                text = base64.b64decode(operation["value"]["content"]).decode()
                problem = card_problem(text, kinds.value.removesuffix("s"))
                if problem is not None:
                    raise RefusalError(400, f"Invalid metadata in README.md: {problem}")
        faults.reach("commit")
        await faults.pause("commit")
        made = store.commit(
            kinds.value,
            f"{owner}/{name}",
            revision,
            lines[0]["value"]["summary"],
            lambda files: apply_operations(store, files, lines[1:]),
            parent=lines[0]["value"].get("parentCommit"),
            before_publishing=lambda: faults.reach("publish"),
        )
        prefix = "" if kinds is Kinds.models else f"{kinds.value}/"
        url = f"{request.base_url}{prefix}{owner}/{name}/commit/{made.id}"
        return {"success": True, "commitOid": made.id, "commitUrl": url, "hookOutput": ""}


def add_lfs_routes(app: FastAPI, store: Store, faults: Faults) -> None:
    """Uploads of large files: where to put each, putting, and a last check. No repository has them before a commit names them."""

    @app.post("/{owner}/{name}.git/info/lfs/objects/batch")
    @app.post("/datasets/{owner}/{name}.git/info/lfs/objects/batch")
    def batch(owner: str, name: str, request: Request, order: Json) -> dict[str, Any]:
        kinds = "datasets" if request.url.path.startswith("/datasets/") else "models"
        store.commit_at(kinds, f"{owner}/{name}", "main")
        faults.reach("batch")
        objects = []
        for wanted in order["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if store.blob(wanted["oid"]) is None:
                answer["actions"] = {
                    "upload": {"href": f"{request.base_url}lfs/objects/{wanted['oid']}"},
                    "verify": {"href": f"{request.base_url}lfs/verify"},
                }
            objects.append(answer)
        return {"transfer": "basic", "objects": objects}

    @app.put("/lfs/objects/{oid}")
    async def put(oid: str, request: Request) -> None:
        faults.reach("put")

        async def chunks() -> AsyncIterator[bytes]:
            async for chunk in request.stream():
                yield chunk
                await faults.pause("put")

        await store.receive(oid, chunks())

    @app.post("/lfs/verify")
    def verify(order: Json) -> None:
        faults.reach("verify")
        path = store.blob(order["oid"])
        if path is None or path.stat().st_size != order["size"]:
            raise RefusalError(422, f"not uploaded in full: {order['oid']}")


def add_download_routes(app: FastAPI, store: Store) -> None:
    """Files of a commit, whole or in part."""

    def resolve(kinds: str) -> Callable[[str, str, str, str], FileResponse]:
        def answer(owner: str, name: str, revision: str, path: str) -> FileResponse:
            commit = store.commit_at(kinds, f"{owner}/{name}", revision)
            if path not in commit.files:
                raise RefusalError(404, "Entry not found", "EntryNotFound")
            file = commit.files[path]
            headers = {"ETag": f'"{file.upload_oid}"', "X-Repo-Commit": commit.id}
            if file.lfs:
                headers |= {"X-Linked-ETag": f'"{file.upload_oid}"', "X-Linked-Size": str(file.size)}
            return FileResponse(store.blobs / file.sha256, headers=headers, media_type="application/octet-stream")

        return answer

    path = "/{owner}/{name}/resolve/{revision}/{path:path}"
    app.api_route(path, methods=["GET", "HEAD"], response_model=None)(resolve("models"))
    app.api_route(f"/datasets{path}", methods=["GET", "HEAD"], response_model=None)(resolve("datasets"))


def main(root: str, port: str) -> None:
    """Serve until standard input is closed, so that no server outlives the test run that started it."""
    listener = socket.create_server(("127.0.0.1", int(port)))
    # asyncio sets this only where the socket names its protocol. Without it every file's body waits 40 ms for the client's ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = uvicorn.Server(uvicorn.Config(make_app(Store(Path(root))), log_level="warning"))

    def stop_at_end_of_input() -> None:
        sys.stdin.buffer.read()
        server.should_exit = True

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    # The socket listens already: a client that reads this line is served, if only a moment later.
    print(listener.getsockname()[1], flush=True)
    server.run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
