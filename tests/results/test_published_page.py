"""How far tables agree with the published numbers: against counts and ranks by hand."""

import pytest
from scipy.stats import spearmanr

from bayesfed.results import published_page, summary_page


def test_distances_by_hand(lab, stored, told, tmp_path):
    ours = {
        ("FML", "100"): 0.8021,
        ("HBFL", "100"): 0.8010,
        ("FML", "0.05"): 0.6879,
    }  # print: 80.71, 82.10, 51.26, 62.69
    for number, ((method, alpha), best) in enumerate(ours.items()):
        folder = lab.cell("heterogeneous", method, alpha=alpha)
        stored(folder, [0.1, best], [[0.5]] * 10)
        told(folder, train_seconds=3600 * (1.0 + number))
    lab.cell("heterogeneous", "HBFL", alpha="0.05")
    lab.cell("heterogeneous", "FML", dataset="cifar100")
    (path,) = published_page.write(lab.found, tmp_path)
    lines = path.read_text().splitlines()
    assert lines[0] == "### HBFL"
    # Distances 0.50, 2.00 and 17.53; five published cells have no run.
    assert "| table1 | 8 | 3 | 1 | 2 | 2 | +5.01 | 6.68 |  |" in lines
    # Only FML at alpha 0.05 is further off in Table 1, and of the means over clients, which are no published cells, none is
    # named.
    assert [line for line in lines if line.startswith("| table1 | CIFAR10")] == [
        "| table1 | CIFAR10, Non-IID, FML | 68.79 | 51.26 | +17.53 | 1 |"
    ]
    assert "| table2 | client 2: CIFAR10, IID, HBFL | 50.00 | 79.30 | -29.30 | 1 |" in lines
    assert not any(line.startswith("| client_means | CIFAR10") for line in lines)
    claim = next(line for line in lines if line.startswith("| Table 1, HBFL's global model is above FML's |"))
    assert claim.endswith("| paper | 1 (2) | -0.11 points | contradicted 0/1, preliminary |")
    # FML took 1 and 3 hours on CIFAR-10, HBFL 2; of FML on CIFAR-100 nothing is known.
    assert "| heterogeneous | 5 | 3 | 2.00 | 2 (1 runs) | 1 | AMD (1 thread, fp32) |" in lines
    # Table 1 as above; of the 86 published cells of Tables 2 to 4 there are those of the three runs' clients, all at 50 %.
    text = summary_page.write(lab.found, tmp_path)[0].read_text()
    assert (
        "3 of 5 planned runs are finished. Of 94 published percentages 33 are run: 1 within 1, 2 within 3, 2 within 5 points"
        in text
    )
    assert (
        "The paper's 17 claims: 4 contradicted, 11 not in this plan, 2 without a number in the finished runs; "
        "of these 4 preliminary.\n" in text
    )


def test_what_is_not_the_papers_run_is_not_counted(lab, stored, told, tmp_path):
    small = lab.cell("heterogeneous", "FML", rounds=4, changes=["rounds 4 (paper 100)"])
    stored(small, [0.8071], [[0.5]] * 10)
    told(small, train_seconds=1800)
    text = published_page.write(lab.found, tmp_path)[0].read_text()
    assert "| table1 | 8 | 0 |  |  |  |  |  |  |" in text


def test_hours_of_a_cpu_are_told_by_runs_on_cpus_alone(lab, stored, told, tmp_path):
    by = [
        {"by": {"hardware": name, "device": device, "threads": 1}}
        for name, device in (("H200", "cuda"), ("AMD", "cpu"))
    ]
    for seed, how in enumerate(({"device": "cuda"}, {"sessions": by}, {})):
        one = lab.cell("heterogeneous", "FML", seed=seed)
        stored(one, [0.8], [[0.5]] * 10)
        told(one, train_seconds=3600 * (seed + 1), **how)
    lab.cell("heterogeneous", "FML", seed=3)
    lines = published_page.write(lab.found, tmp_path)[0].read_text().splitlines()
    assert any(line.startswith("| heterogeneous | 4 | 3 | 3.00 | 3 (1 runs) | 0 |") for line in lines)


def test_a_claim_of_other_runs_than_the_papers_is_not_held(lab, stored, told, tmp_path):
    for method, best in (("HBFL", 0.9), ("FML", 0.8)):
        small = lab.cell("heterogeneous", method, rounds=4, changes=["rounds 4 (paper 100)"])
        stored(small, [best], [[best]] * 10)
        told(small, train_seconds=1800)
    text = summary_page.write(lab.found, tmp_path)[0].read_text()
    assert "Of 94 published percentages 0 are run." in text
    assert (
        "The paper's 17 claims: 4 supported, 11 not in this plan, 2 without a number in the finished runs; "
        "of these 4 off-protocol.\n" in text
    )


@pytest.mark.parametrize("pairs", [[], [(1.0, 2.0), (3.0, 1.0)], [(1.0, 5.0), (2.0, 5.0), (3.0, 5.0)]])
def test_no_rank_correlation_of_too_few_or_equal_cells(pairs):
    assert published_page.rank_correlation(pairs) is None
    assert published_page.order([pairs]) == ""


def test_the_order_of_methods_is_that_within_cells_that_are_alike():
    first, second = [(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)], [(51.0, 60.0), (52.0, 61.0), (53.0, 62.0)]
    ranked = spearmanr(*zip(*first, strict=True)).statistic
    assert ranked == pytest.approx(0.5)
    assert published_page.order([first]) == "0.50"
    assert published_page.order([first, second, second[:2]]) == "0.75 (0.5 to 1.0 in 2)"


def test_a_claim_whose_runs_have_diverged_waits_for_none(lab, stored, told, tmp_path):
    for method in ("HBFL", "FML"):
        folder = lab.cell("heterogeneous", method)
        stored(folder, [0.5], [[0.5]] * 10, diverged={"round": 1})
        told(folder, train_seconds=1800)
    text = summary_page.write(lab.found, tmp_path)[0].read_text()
    assert "The paper's 17 claims: 6 diverged, 11 not in this plan.\n" in text
