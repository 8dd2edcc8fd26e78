"""The local Hub keeps the Hub's promises on which the tests of pushing rest."""

import base64
import hashlib
import json

import pytest

from .hub import Hub


def make(hub: Hub, name: str) -> str:
    hub.ask_json("POST", "/api/repos/create", {"organization": "server", "name": name, "type": "dataset"})
    return f"server/{name}"


def commit(hub: Hub, repo: str, *operations: dict, parent: str | None = None) -> int:
    value = {"summary": "change", "description": ""} | ({} if parent is None else {"parentCommit": parent})
    header = {"key": "header", "value": value}
    lines = "".join(json.dumps(line) + "\n" for line in (header, *operations))
    return hub.ask("POST", f"/api/datasets/{repo}/commit/main", lines.encode())[0].status


def regular(path: str, content: bytes) -> dict:
    return {
        "key": "file",
        "value": {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"},
    }


def large(path: str, content: bytes) -> dict:
    oid = hashlib.sha256(content).hexdigest()
    return {"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": oid, "size": len(content)}}


def test_a_repository_is_made_once(hub):
    repo = make(hub, "once")
    order = {"organization": "server", "name": "once", "type": "dataset"}
    response, answer = hub.ask("POST", "/api/repos/create", order)
    # Clients told that an existing repository is fine take its address from the refusal.
    assert (response.status, json.loads(answer)["url"]) == (409, f"{hub.url}/datasets/{repo}")
    assert hub.state(repo)[1] == []
    response, _ = hub.ask("GET", "/api/datasets/server/never")
    assert (response.status, response.headers["X-Error-Code"]) == (404, "RepoNotFound")
    response, _ = hub.ask("GET", f"/api/datasets/{repo}/revision/never")
    assert (response.status, response.headers["X-Error-Code"]) == (404, "RevisionNotFound")


def test_files_come_back_whole_and_in_part(hub):
    repo = make(hub, "files")
    content = bytes(range(256)) * 8
    oid = hashlib.sha256(content).hexdigest()
    assert hub.ask("PUT", f"/lfs/objects/{oid}", content)[0].status == 200
    assert commit(hub, repo, regular("a/b.txt", b"text\n"), large("a/c.parquet", content)) == 200
    path = f"/datasets/{repo}/resolve/main/a/c.parquet"
    response, got = hub.ask("GET", path)
    assert got == content
    assert response.headers["ETag"] == f'"{oid}"'
    assert response.headers["X-Repo-Commit"] == hub.state(repo)[0]
    response, got = hub.ask("GET", path, headers={"Range": "bytes=300-309"})
    assert (response.status, got) == (206, content[300:310])
    response, got = hub.ask("HEAD", path)
    assert (response.headers["Content-Length"], got) == (str(len(content)), b"")
    # `git hash-object` of "text\n".
    response, got = hub.ask("GET", f"/datasets/{repo}/resolve/main/a/b.txt")
    assert (response.headers["ETag"], got) == ('"8e27be7d6154a1f68ea9160ef0e18691d20560dc"', b"text\n")
    assert [entry["path"] for entry in hub.ask_json("GET", f"/api/datasets/{repo}/tree/main")] == ["a"]
    assert [entry["path"] for entry in hub.state(repo)[1]] == ["a", "a/b.txt", "a/c.parquet"]
    response, _ = hub.ask("GET", f"/datasets/{repo}/resolve/main/a/d.txt")
    assert (response.status, response.headers["X-Error-Code"]) == (404, "EntryNotFound")


def test_a_damaged_upload_is_refused(hub):
    repo = make(hub, "damaged")
    before = hub.state(repo)
    oid = hashlib.sha256(b"what was announced").hexdigest()
    assert hub.ask("PUT", f"/lfs/objects/{oid}", b"what was ann")[0].status == 422
    assert hub.ask("POST", "/lfs/verify", {"oid": oid, "size": 18})[0].status == 422
    assert commit(hub, repo, regular("a.txt", b"a"), large("b.parquet", b"what was announced")) == 400
    assert hub.state(repo) == before


@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "/outside", "", "a//b", ".git/config"])
def test_no_path_leaves_the_repository(hub, path):
    repo = make(hub, f"paths-{path.encode().hex()}")
    assert commit(hub, repo, regular(path, b"")) == 400
    assert hub.state(repo)[1] == []


def test_a_commit_on_a_stale_parent_is_refused(hub):
    repo = make(hub, "stale")
    first, _ = hub.state(repo)
    assert commit(hub, repo, regular("a.txt", b"1"), parent=first) == 200
    now = hub.state(repo)
    assert commit(hub, repo, regular("a.txt", b"2"), parent=first) == 412
    assert hub.state(repo) == now
    assert commit(hub, repo, {"key": "deletedFile", "value": {"path": "b.txt"}}) == 404
    assert commit(hub, repo, {"key": "deletedFile", "value": {"path": "a.txt"}}, parent=now[0]) == 200
    assert hub.state(repo)[1] == []


@pytest.mark.parametrize(
    ("head", "refusal"),
    [
        ("license: null", '"license" must be a string'),
        ("license: none-that-exists", '"license" must be one of'),
        ("datasets: [/tmp/rows]", "use a dataset id"),
        ("tags: [1]", '"tags" must be an array of strings'),
        ("model-index: [{name: x, results: [{task: {type: a}, metrics: [{type: b, value: 1}]}]}]", "dataset"),
        ("model-index: [{name: x, results: [{task: {type: a}, dataset: {type: d, name: d}}]}]", "metrics[0]"),
        (
            "model-index: [{name: x, results: [{task: {type: a}, dataset: {type: d, name: d, config: null}}]}]",
            'dataset.config" must be a string',
        ),
        (
            "model-index: [{name: x, results: [{task: {type: a}, dataset: {type: d, name: d},"
            " metrics: [{type: b, value: .nan}]}]}]",
            'value" must be a finite number',
        ),
        ("[", "expected"),
    ],
)
def test_a_card_that_breaks_the_rules_is_not_committed(hub, head, refusal):
    hub.ask("POST", "/api/repos/create", {"organization": "server", "name": "cards", "type": "model"})
    before = hub.state("server/cards", "models")
    text = f"---\n{head}\n---\n".encode()
    lines = [{"key": "header", "value": {"summary": "card"}}, regular("README.md", text)]
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    response, answer = hub.ask("POST", "/api/models/server/cards/commit/main", body)
    assert response.status == 400
    assert refusal in json.loads(answer)["error"]
    assert hub.state("server/cards", "models") == before
