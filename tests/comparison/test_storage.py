"""A comparison under a URL: the same numbers as in a folder, attempts that do not mix, and readers that see whole runs only."""

import json
import shutil

import fsspec
import pytest

from hf_semfocus import compare as from_python
from hf_semfocus.comparison import attempts, storage
from hf_semfocus.comparison.attempts import Attempt, GoneError, TakenOverError, read_manifest, run_at
from hf_semfocus.comparison.bucket import can_pass
from hf_semfocus.comparison.compare import compare
from hf_semfocus.comparison.engines import Wanted, make_engine
from hf_semfocus.comparison.engines.base import Job
from hf_semfocus.comparison.storage import UrlStore, local_copy, open_store
from hf_semfocus.comparison.summary import write_summary
from hf_semfocus.comparison.workers import train

from .clusters import s3_server, tiny, train_here, trained


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(attempts.tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(attempts, "SHARE", 1e9)  # each epoch is published


@pytest.fixture
def memory():
    fsspec.filesystem("memory").store.clear()
    yield "memory://comparison"
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    asked = tiny()
    return asked, train_here(asked, tmp_path_factory.mktemp("undisturbed"))


def inline():
    return make_engine("inline", Wanted())


def test_a_url_holds_what_a_folder_holds_and_is_not_trained_twice(memory, undisturbed, tmp_path):
    asked, expected = undisturbed
    results = compare(asked, memory, engine=inline())
    assert trained(memory, asked) == expected
    assert [result["epochs_trained"] for result in results] == [3, 3]
    before = dict(fsspec.filesystem("memory").store)
    shutil.rmtree(tmp_path / "cache")  # another machine goes on
    assert compare(asked, memory, engine=inline()) == results
    runs = {path: file for path, file in before.items() if "/manifests/" in path or "/objects/" in path}
    assert {path: fsspec.filesystem("memory").store[path] for path in runs} == runs
    # one manifest a run, and only objects that it names
    assert sum(path.endswith(".json") and "/manifests/" in path for path in runs) == 2
    assert sum("/objects/" in path for path in runs) == 2 * 2  # the model, and the checkpoint to go on from
    wider = compare(tiny(seeds=(0, 1)), memory, engine=inline())
    assert wider[:2] == results
    assert not list((tmp_path / "scratch").rglob("*.json"))
    folder = local_copy(memory)
    assert write_summary(folder)["masks"] == ["full", "topk:3"]
    model = local_copy(f"{memory}/runs/{asked.units()[0].name}/model")
    assert (model / "model.safetensors").is_file()


def attempt_until(place, spec, epochs, monkeypatch):
    """Trains until so many epochs are published, then dies without a word."""
    published = Attempt._publish

    def publish(self):
        published(self)
        if int(self.published[:6]) == epochs:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Attempt, "_publish", publish)
        with pytest.raises(KeyboardInterrupt):
            train(Job(0, spec.to_dict(), place))


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_is_taken_up_where_another_worker_left_it(epochs, memory, undisturbed, monkeypatch):
    asked, expected = undisturbed
    unit = asked.units()[1]
    place = f"{memory}/runs/{unit.name}"
    attempt_until(place, unit, epochs, monkeypatch)
    seen = []
    with run_at(place) as run:
        assert (run.folder / "history.jsonl").read_text().count("\n") == epochs
    outcome = train(Job(0, unit.to_dict(), place), tell=seen.append)
    assert [entry["epoch"] for entry in seen] == list(range(epochs + 1, 4))
    assert outcome.recorded
    store = open_store(memory)
    rows = [
        json.loads(line) for line in (store.folder / "runs" / unit.name / "history.jsonl").read_text().splitlines()
    ]
    assert [{k: v for k, v in row.items() if "seconds" not in k} for row in rows] == expected[unit.name][0]
    # what the dead attempt left is gone
    assert len({path.split("/")[-2] for path in fsspec.filesystem("memory").store if "/objects/" in path}) == 1


def test_a_stale_attempt_notices_the_later_one_and_changes_nothing_that_counts(memory, undisturbed, monkeypatch):
    asked, _ = undisturbed
    unit = asked.units()[1]
    place = f"{memory}/runs/{unit.name}"
    attempt_until(place, unit, 1, monkeypatch)
    with run_at(place) as stale:
        train(Job(0, unit.to_dict(), place))  # elsewhere, to its end
        files = dict(fsspec.filesystem("memory").store)
        with pytest.raises(TakenOverError, match="taken"):
            stale.publish()
        assert dict(fsspec.filesystem("memory").store) == files
    result = train(Job(0, unit.to_dict(), place)).result
    assert result["epochs_trained"] == 3


def test_readers_follow_the_highest_epoch_then_the_later_attempt():
    names = [
        f"{name}.json"
        for name in (
            "000002.0-0001-aaaaaaaa",
            "000003.0-0001-aaaaaaaa",
            "000003.0-0002-00000000",
            "000003.1-0001-aaaaaaaa",
            "000003.2-0001-aaaaaaaa",
        )
    ]
    for count in range(1, len(names) + 1):
        others = ["000009.0-0001-aaaaaaaa.json.part", "0009-aaaaaaaa.begun"]
        assert attempts.newest([*others, *reversed(names[:count])]) == names[count - 1]
    assert attempts.newest(["0001-aaaaaaaa.begun"]) is None


def test_a_failed_run_is_recorded_and_tried_again(memory, undisturbed, monkeypatch):
    asked, expected = undisturbed
    from hf_semfocus.comparison import workers

    def fails(*_, **__):
        raise RuntimeError("no luck")

    with monkeypatch.context() as patched:
        patched.setattr(workers, "train_run", fails)
        results = compare(asked, memory, engine=inline())
    assert {result["status"] for result in results} == {"failed"}
    assert "no luck" in results[0]["error"]
    compare(asked, memory, engine=inline())
    assert trained(memory, asked) == expected


def test_an_object_that_is_replaced_while_it_is_read_does_not_stop_the_next_attempt(memory, undisturbed, monkeypatch):
    """A worker that does not know yet that its node is lost may publish once more."""
    unit = undisturbed[0].units()[1]
    place, old, published = f"{memory}/runs/{unit.name}", [], Attempt._publish

    def publish(self):
        published(self)
        old.append(read_manifest(self.bucket, self.run))

    with monkeypatch.context() as patched:
        patched.setattr(Attempt, "_publish", publish)
        attempt_until(place, unit, 2, patched)
    with monkeypatch.context() as patched:
        first = iter(old[:1])
        patched.setattr(attempts, "read_manifest", lambda *which: next(first, None) or read_manifest(*which))
        with run_at(place) as run:
            assert (run.folder / "history.jsonl").read_text().count("\n") == 2
        patched.setattr(attempts, "read_manifest", lambda *_: old[0])
        with pytest.raises(GoneError, match="is gone"), run_at(place):
            pass


def test_a_node_whose_disk_is_full_stops_no_other(memory, monkeypatch):
    from hf_semfocus.comparison import workers

    trains = workers.train_run

    def train_run(spec, *more, **options):
        if spec.mask == "full":
            raise OSError(28, "No space left on device")
        return trains(spec, *more, **options)

    def write_failed(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workers, "train_run", train_run)
    monkeypatch.setattr(workers, "write_failed", write_failed)
    full, fine = compare(tiny(epochs=1), memory, engine=inline())
    assert (full["status"], fine["epochs_trained"]) == ("failed", 1)
    assert "No space left" in full["error"]


def of_boto(code, status):
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    error = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return translate_boto_error(ClientError(error, "PutObject"))


def test_only_what_can_pass_is_asked_again():
    import aiohttp
    from botocore.exceptions import EndpointConnectionError, NoCredentialsError, ReadTimeoutError

    for error in (
        ConnectionResetError(),
        TimeoutError(),
        EndpointConnectionError(endpoint_url="http://x"),
        ReadTimeoutError(endpoint_url="http://x"),
        aiohttp.ClientPayloadError(),
        *(of_boto(*fault) for fault in (("SlowDown", 503), ("InternalError", 500), ("Unheard", 502))),
    ):
        assert can_pass(error), error
    for error in (
        PermissionError(),
        NoCredentialsError(),
        OSError(28, "No space left on device"),
        *(of_boto(*fault) for fault in (("AccessDenied", 403), ("NoSuchBucket", 404), ("InvalidBucketName", 400))),
    ):
        assert not can_pass(error), error


@pytest.mark.slow
def test_object_storage_that_goes_away_for_a_while_loses_nothing(undisturbed, tmp_path, monkeypatch):
    """Epochs are not published meanwhile; the end of a run is published late."""
    from s3fs import S3FileSystem

    asked, expected = undisturbed
    with s3_server() as server:
        fsspec.filesystem("s3").mkdir("bucket")
        place = "s3://bucket/comparison"
        away, put = [], S3FileSystem.put_file

        def put_file(self, local, remote, **options):
            if "000001" not in remote and len(away) < 4:
                away.append(remote)
                raise ConnectionError("no route to the storage")
            put(self, local, remote, **options)

        monkeypatch.setattr(S3FileSystem, "put_file", put_file)
        compare(asked, place, engine=inline())
        assert len(away) == 4
        assert trained(place, asked) == expected
        assert server.startswith("http://127.0.0.1")


def test_bad_places_are_one_error(tmp_path):
    for place, words in (
        ("s4://bucket/x", "Protocol not known"),
        ("gs://bucket/x", "needs a library that is not installed"),
    ):
        with pytest.raises(ValueError, match=words):
            compare(tiny(), place)
    with pytest.raises(ValueError, match="holds no comparison"):
        local_copy("memory://nothing")
    assert not (tmp_path / "cache").exists()


def test_a_folders_url_is_the_folder(tmp_path):
    assert open_store(f"file://{tmp_path}").folder == local_copy(f"file://{tmp_path}") == tmp_path


def test_a_copy_has_its_runs_while_it_is_brought_up_to_date(memory, monkeypatch):
    """`semfocus status` beside the comparison reads the same copy."""
    compare(tiny(epochs=1), memory, engine=inline())
    store, seen = open_store(memory), []
    files = sorted(store.folder.glob("runs/*/*/seed-*/.manifest.json"))
    for file in files:
        file.write_text(json.dumps({**json.loads(file.read_text()), "name": "an older one"}))
    files[0].write_text("{")  # damaged: fetched again

    def write_records(folder, records):
        seen.append((folder / "result.json").is_file())

    monkeypatch.setattr(storage, "write_records", write_records)
    store.refresh()
    assert seen == [True, True]


def test_a_damaged_object_is_named(memory, undisturbed, monkeypatch):
    asked, _ = undisturbed
    unit = asked.units()[1]
    place = f"{memory}/runs/{unit.name}"
    attempt_until(place, unit, 1, monkeypatch)
    files = fsspec.filesystem("memory")
    (name,) = [path for path in files.store if "/objects/" in path]
    files.pipe_file(name, b"something else")
    with pytest.raises(ValueError, match=r"checkpoint-4\.tar is damaged"), run_at(place):
        pass
    assert isinstance(open_store(memory), UrlStore)


def test_a_comparison_from_python_at_a_url_has_its_report_there(memory, no_workers):
    shown = from_python(tiny(epochs=1), memory)
    assert len(shown.table()) == 2
    assert fsspec.filesystem("memory").exists(f"{memory}/report.html")
