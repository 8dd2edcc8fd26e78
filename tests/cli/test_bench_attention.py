"""`semfocus bench attention`: what is measured is what is said, and the ratios are what they are called."""

import csv
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from hf_semfocus.attention import reference_attention
from hf_semfocus.bench import cases, implementations, measure, results
from hf_semfocus.bench.cases import Case, Setting
from hf_semfocus.bench.measure import Cost
from hf_semfocus.bench.memory import peak_extra_bytes
from hf_semfocus.bench.others import OtherWork
from hf_semfocus.cli.bench import result
from hf_semfocus.cli.bench_tables import print_result
from hf_semfocus.model.mask_registry import parse_mask
from hf_semfocus.report.cost_pictures import attention_cost
from tests.small import run

CPU = torch.device("cpu")
MASKS = ["full", "topk:3", "topk:50", "banded:5", "block:4", "banded:3+global:1", "topk:3+sink:2", "topk:2+banded:3"]


def compared(attend, mask, length=17):
    """Output and gradients of an implementation and of the reference on the same inputs."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, 2, length, 8, generator=generator, dtype=torch.float64) for _ in range(4)]
    *qkv, gradient = inputs
    for tensor in qkv:
        tensor.requires_grad_()
    found = []
    for output in (attend(*qkv), reference_attention(*qkv, mask)):
        found.append((output, *torch.autograd.grad(output, qkv, gradient)))
    return found


@pytest.mark.parametrize("mask", MASKS)
def test_mask_then_softmax_is_the_reference(mask):
    attend = implementations.mask_then_softmax(parse_mask(mask), 17, CPU)
    for ours, theirs in zip(*compared(attend, mask), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_strategy_of_ones_own_is_asked_with_the_scores(own_strategy):
    attend = implementations.mask_then_softmax(parse_mask(own_strategy), 17, CPU)
    for ours, theirs in zip(*compared(attend, own_strategy), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.fixture
def own_strategy(monkeypatch):
    from hf_semfocus import MaskStrategy, register_mask_strategy
    from hf_semfocus.model import mask_registry

    monkeypatch.setattr(mask_registry, "_REGISTRY", dict(mask_registry._REGISTRY))

    @register_mask_strategy("above_zero")
    class AboveZero(MaskStrategy):
        """Keys with a positive score, and the query itself."""

        def keep(self, scores, valid, context):
            return (scores > 0) | (context.query_positions == context.key_positions)

    return "above_zero"


def test_x_transformers_is_called_as_meant():
    pytest.importorskip("x_transformers", reason="part of the extra [bench]")
    attend = implementations.x_transformers(parse_mask("topk:3"), 17, CPU)
    for ours, theirs in zip(*compared(attend, "topk:3"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert implementations.x_transformers(parse_mask("topk:3+sink:1"), 17, CPU) is None


def test_peak_memory_is_the_most_held_at_once():
    """Of 1,000 float64 numbers: x, y (16,000), x let go, z (16,000), both let go; a workspace inside an operator counts too."""

    def steps():
        x = torch.zeros(1000, dtype=torch.float64)
        y = torch.empty_like(x)
        del x
        z = torch.empty_like(y)
        del y, z
        return torch.zeros(500, dtype=torch.float64)

    for _ in range(2):
        assert peak_extra_bytes(steps, CPU) == 16_000
    kept = torch.zeros(1000, dtype=torch.float64)
    assert peak_extra_bytes(lambda: kept.neg_(), CPU) == 0


def test_peak_memory_of_dense_scores_is_theirs():
    """Matrices of 128 × 128 fp32 numbers that autograd's softmax(scores) v needs at once in its backward pass: at least the
    weights and their gradient, at most one for each of the nine operators."""
    step = measure.step_of(
        Case("topk:3", 2, 128), Setting(dim=8), implementations.mask_then_softmax(parse_mask("topk:3"), 128, CPU)
    )
    matrix = 2 * 128 * 128 * 4
    assert 2 * matrix < peak_extra_bytes(step, CPU) < 9 * matrix


def test_ratios_by_hand():
    """Medians 3 and 20; the rounds' ratios are 0.1, 0.2, 0.1, 0.5, 0.25."""
    case = Case("topk:5", 4, 2048)
    ours = Cost(case, "ours", seconds=(1.0, 2.0, 3.0, 5.0, 10.0), peak_bytes=10)
    dense = Cost(case, "dense", seconds=(10.0, 10.0, 30.0, 10.0, 40.0), peak_bytes=40)
    assert measure.time_ratio(ours, dense) == pytest.approx((0.1, 3 / 10, 0.25))
    assert measure.memory_ratio(ours, dense) == 0.25
    missing = Cost(case, "x-transformers", "not installed")
    assert measure.time_ratio(ours, missing) is None
    assert measure.memory_ratio(ours, missing) is None
    costs = [{cost.implementation: cost for cost in (ours, dense, missing)}]
    goals = results.verdicts(costs, Setting())
    told = {(goal["quantity"], goal["against"]): goal["verdict"] for goal in goals}
    assert told == {("time", "dense"): "met", ("time", "x-transformers"): "not judged: x-transformers not installed"}
    assert results.verdicts(costs, Setting(threads=1)) == []
    slow = Cost(case, "ours", seconds=tuple(2 * value for value in ours.seconds), peak_bytes=10)
    (goal, _) = results.verdicts([{**costs[0], "ours": slow}], Setting())
    assert (goal["goal"], goal["measured"], goal["verdict"]) == (0.35, pytest.approx(0.6), "missed by 0.250")


def test_every_goal_is_among_the_default_cases():
    measured = cases.cases_of(None, None)
    assert {goal.case for goal in cases.GOALS} <= set(measured)
    assert len(measured) == len(set(measured))
    assert cases.cases_of(["topk:9"], None) == [Case("topk:9", *shape) for shape in cases.SHAPES]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_each_implementation_follows_each_other_equally_often(count):
    names = "abcde"[:count]
    rounds = [measure.order_of(names, number) for number in range(2 * count)]
    assert all(sorted(order) == list(names) for order in rounds)
    pairs = Counter(pair for order in rounds for pair in itertools.pairwise(order))
    assert set(pairs) == set(itertools.permutations(names, 2))
    assert len(set(pairs.values())) <= 1


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not say what others do")
def test_the_work_of_other_processes_is_seen():
    clock = OtherWork()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(0.7)
        beside = clock.cores()
        busy.kill()
    assert beside > 0.2


def test_a_disturbed_case_is_named(capsys):
    case = Case("topk:5", 2, 8)
    for cores, words in ((0.05, "at most 0.05 cores"), (1.25, "not to be relied on: topk:5 2x8 (1.2 cores)")):
        costs = {name: Cost(case, name, "", None, (1.0,), 8, cores) for name in implementations.IMPLEMENTATIONS}
        print_result(result([costs], Setting(), "semfocus bench attention"), Console(width=100))
        assert words in capsys.readouterr().out


def test_threads_are_put_back():
    before = torch.get_num_threads()
    for _ in measure.bench_attention([Case("topk:2", 1, 8)], Setting(threads=2, dim=4), rounds=1):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_what_the_machine_cannot_hold_is_left_out(monkeypatch):
    monkeypatch.setattr(measure, "total_memory", lambda: 2**20)
    (costs,) = measure.bench_attention([Case("topk:2", 1, 512)], Setting(threads=1, dim=4), rounds=1)
    assert costs["mask-then-softmax"].note == "needs 0.00488 GiB"  # five matrices of 512 × 512 fp32 numbers
    assert costs["ours"].seconds
    assert costs["dense"].seconds


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One small run by the command line without x-transformers: what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "x_transformers", None)
        patch.setitem(sys.modules, "x_transformers.attend", None)
        masks = ["--masks", "topk:2", "banded:3", "--shapes", "2x8", "1x32"]
        assert run("bench", "attention", *masks, "--dim", "4", "--quick", "--output", folder) == 0
    return folder


def test_files_have_a_row_for_each_case_and_implementation(measured):
    with (measured / "attention.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    shapes = {(mask, batch, length) for mask in ("topk:2", "banded:3") for batch, length in (("2", "8"), ("1", "32"))}
    expected = {(*shape, name) for shape in shapes for name in implementations.IMPLEMENTATIONS}
    assert {(row["mask"], row["batch"], row["length"], row["implementation"]) for row in found} == expected
    assert len(found) == len(expected)
    stored = json.loads((measured / "attention.json").read_text(encoding="utf-8"))
    assert len(stored["rows"]) == len(found)
    by_case = {(row["mask"], row["length"], row["implementation"]): row for row in stored["rows"]}
    for row in stored["rows"]:
        ours = by_case[row["mask"], row["length"], "ours"]
        if row["implementation"] == "x-transformers":
            assert row["note"] == "not installed"
            assert row["median_ms"] is row["ours_over_this_time"] is row["peak_extra_bytes"] is None
            continue
        assert len(row["seconds"]) == row["rounds"] == 3
        assert row["median_ms"] == pytest.approx(1000 * np.median(row["seconds"]))
        assert row["ours_over_this_time"] == pytest.approx(np.median(ours["seconds"]) / np.median(row["seconds"]))
        ratios = np.array(ours["seconds"]) / np.array(row["seconds"])
        assert row["ours_over_this_time_first_quartile"] == pytest.approx(np.quantile(ratios, 0.25))
        assert row["ours_over_this_time_third_quartile"] == pytest.approx(np.quantile(ratios, 0.75))
        assert row["ours_over_this_memory"] == pytest.approx(ours["peak_extra_bytes"] / row["peak_extra_bytes"])


def test_the_text_has_every_row_within_its_width(measured):
    text = (measured / "attention.txt").read_text(encoding="utf-8")
    head, goals, *tables = text.strip("\n").split("\n\n")
    assert "float32" in head
    assert "no goals" in goals
    for table in tables:
        assert "installed" in table
        for mask in ("topk:2", "banded:3"):
            assert [line.split()[1] for line in table.splitlines() if line.startswith(f"{mask} ")] == ["2x8", "1x32"]
    assert len(tables) == 2
    assert max(map(len, text.splitlines())) <= 100
    assert (measured / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_each_mask_and_a_token_s_share(measured):
    stored = json.loads((measured / "attention.json").read_text(encoding="utf-8"))["rows"]
    left, right = attention_cost(stored).axes
    assert left.get_xscale() == left.get_yscale() == right.get_xscale() == right.get_yscale() == "log"
    (dense,) = (line for line in left.lines if line.get_linestyle() == "-" and line.get_marker() == ".")
    rows = {row["length"]: row for row in stored if (row["mask"], row["implementation"]) == ("topk:2", "dense")}
    assert list(dense.get_xdata()) == [8, 32]
    np.testing.assert_allclose(
        dense.get_ydata(), [1000 * rows[8]["median_ms"] / 16, 1000 * rows[32]["median_ms"] / 32]
    )
    with_line = [line for line in right.lines if len(line.get_xdata()) == 2]
    assert len(with_line) == 4  # ours with two masks, dense, mask-then-softmax
    nothing = [{**row, "median_ms": None} for row in stored]
    assert attention_cost(nothing) is None


def test_missing_x_transformers_is_one_line_that_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "x_transformers", None)
    monkeypatch.setitem(sys.modules, "x_transformers.attend", None)
    assert run("bench", "attention", "--masks", "topk:2", "--shapes", "1x8", "--rounds", "1", "--threads", "1") == 0
    out = capsys.readouterr().out
    assert sum("pip install" in line for line in out.splitlines()) == 1
    assert "[bench]" in out


def test_profile_lists_the_operators(tmp_path, capsys):
    assert run("bench", "attention", "--profile", "topk:3", "1x200", "--threads", "1", "--output", tmp_path) == 0
    text = (tmp_path / "attention_profile.txt").read_text(encoding="utf-8")
    assert text.splitlines()[0].startswith("$ semfocus bench attention --profile topk:3 1x200")
    assert "'lists'" in text
    assert "aten::bmm" in text
    shares = [float(line.split()[-2]) for line in text.splitlines() if line.endswith("%")]
    assert len(shares) == 10
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 100.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--masks", "tpok:5"], ["tpok", "topk"]),
        (["--shapes", "16-600"], ["16-600", "16x600"]),
        (["--shapes", "4x"], ["4x"]),
        (["--dtype", "float8"], ["float8", "float32"]),
        (["--device", "tpu"], ["tpu", "cuda"]),
        (["--heads", "0"], ["heads", "0"]),
        (["--profile", "topk:5", "2048"], ["2048", "BATCHxLENGTH"]),
        (["--import", "missing.py"], ["missing.py"]),
        (["--output", ""], ["empty"]),
        (["--output", "file/below"], ["file"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_exit_code_two(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    assert run("bench", "attention", "--quick", *arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    for word in words:
        assert word in lines[0]
    assert not list(tmp_path.rglob("attention.*"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_an_absent_gpu_is_one_line(capsys):
    assert run("bench", "attention", "--quick", "--device", "cuda") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "CUDA" in line


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_rows(tmp_path):
    options = ["--masks", "topk:2", "--shapes", "2x64", "--device", "cuda", "--output", tmp_path]
    assert run("bench", "attention", "--quick", *options) == 0
    stored = json.loads((tmp_path / "attention.json").read_text(encoding="utf-8"))
    assert "gpu" in stored["machine"]
    assert all(row["peak_extra_bytes"] > 0 for row in stored["rows"] if not row["note"])


@pytest.mark.slow
def test_the_profiler_s_log_stays_off_the_terminal():
    code = (
        "import torch\nfrom hf_semfocus.bench.memory import peak_extra_bytes\n"
        "print(peak_extra_bytes(lambda: torch.zeros(100), torch.device('cpu')))"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KINETO")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert (done.stdout.strip(), done.stderr) == ("400", "")
