"""Every check that needs a GPU, in one call: correctness first, then speed, then whole runs and the floor.

    python -m benchmarks.gpu [--out DIR] [--data DIR] [--only NAMES]

Needs torch, numpy, PyYAML and safetensors. Each part is a process of its own with a limit of its own, so that a fault
in one leaves the others; what it prints goes to OUT/<part>.log as it comes, its results to OUT/<part>.json or
OUT/<part>.csv. All parts take half an hour; --only takes some. With --data, a folder that holds cifar10, whole runs train on real images and say what
accuracy they reach; without, on noise.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from bayesfed import methods
from bayesfed.data import store
from bayesfed.engine import checkpoint
from bayesfed.engine import device as devices
from bayesfed.engine.executors import EXECUTORS, GraphExecutor
from bayesfed.engine.federation import Compute, Federation
from bayesfed.engine.rounds import Progress, Trainer, begin
from bayesfed.models import Network
from bayesfed.models.network import Conv
from benchmarks import common

PRECISIONS = ("fp32", "tf32", "bf16")
SMALL = (2000, 500)  # training and test images for checks of correctness
# Largest difference between graphs and eager after two rounds, relative to the norm of each tensor.
BOUNDS = {"fp64": 1e-9, "fp32": 1e-4, "tf32": 2e-2, "bf16": 2e-2}


def compute(precision: str) -> Compute:
    """On the GPU; fp64 too, for comparisons."""
    if precision == "fp64":
        return Compute(torch.device("cuda"), torch.float64, torch.float64)
    return devices.compute("cuda", precision)


def small(method: str, where: Compute, **budget: Any) -> Federation:
    """Four mixed clients with uneven shards, stragglers, and batches that do not divide them."""
    networks: dict[str, Any] = {"global": "cnn2"}
    if methods.get(method).local_models:
        networks["local"] = ["mlp", "lenet5", "cnn1", "cnn2"]
    data, options = common.random_images(*SMALL), {"validation_images": 100} if method == "abavg" else {}
    changes = {"alpha": 0.3, "stragglers": 0.5, "local_epochs": 2, "batch_size": 100, "rounds": 2} | budget
    return common.federation({"name": method} | options, networks, data, where, clients=4, **changes)


def play(of: Federation, executor: str, rounds: int, progress: Progress | None = None) -> Progress:
    """So many more rounds."""
    trainer, progress = Trainer(of, executor, lambda: None, lambda: None), progress or begin(of)
    for _ in range(rounds):
        progress = trainer.play(progress)
    return progress


def tensors(progress: Progress) -> dict[str, Tensor]:
    """All of a progress, on the host."""
    return {name: tensor.cpu() for name, tensor in progress.tensors().items()}


def equivalence() -> dict[str, Any]:
    """Graphs against eager for every method and precision; eager on the GPU against the CPU where no noise is drawn."""
    result: dict[str, Any] = {}
    for name in methods.names():
        for precision, bound in BOUNDS.items():
            of = small(name, compute(precision))
            eager = tensors(play(of, "eager", 2))
            for lanes in (2, 16):
                with mock.patch("bayesfed.engine.executors.graphs.lanes_of", return_value=lanes):
                    found = tensors(play(of, "graphs", 2))
                worst = max(float((found[k] - t).norm() / t.norm().clamp(min=1e-12)) for k, t in eager.items())
                result[f"{name} {precision} {lanes} lanes"] = {
                    "difference": worst,
                    "bound": bound,
                    "holds": worst <= bound,
                }
                print(name, precision, lanes, f"{worst:.1e}", "holds" if worst <= bound else "FAILS", flush=True)
        if name != "hbfl":
            on_cpu = tensors(play(small(name, Compute(torch.device("cpu"), torch.float64, torch.float64)), "eager", 2))
            on_gpu = tensors(play(small(name, compute("fp64")), "graphs", 2))
            worst = max(float((on_gpu[k] - t).norm() / t.norm().clamp(min=1e-12)) for k, t in on_cpu.items())
            result[f"{name} fp64 GPU against CPU"] = {"difference": worst, "bound": 1e-9, "holds": worst <= 1e-9}
            print(name, "GPU against CPU", f"{worst:.1e}", flush=True)
    failed = [name for name, one in result.items() if not one["holds"]]
    return result | {"failed": failed}


def resume() -> dict[str, Any]:
    """A run stopped after a round and resumed in new objects equals one that was not, bit for bit; so does a repeat."""
    result = {}
    for name in methods.names():
        for executor in ("eager", "graphs"):
            whole, again = (play(small(name, compute("fp32")), executor, 2) for _ in range(2))
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "c"
                half = play(small(name, compute("fp32")), executor, 1)
                checkpoint.save(path, half, checkpoint.Record("key", "fp32", executor))
                stored, _ = checkpoint.load(path, "key", compute("fp32").device)
            resumed = play(small(name, compute("fp32")), executor, 1, stored)
            same = {
                "repeats": all(torch.equal(t, tensors(again)[k]) for k, t in tensors(whole).items()),
                "resumes": all(torch.equal(t, tensors(resumed)[k]) for k, t in tensors(whole).items()),
                "same metrics": whole.history == resumed.history,
            }
            result[f"{name} {executor}"] = same
            print(name, executor, same, flush=True)
    return result | {"failed": [name for name, same in result.items() if not all(same.values())]}


def operations(network: Network) -> int:
    """Floating-point operations of one image's forward pass, products and convolutions alone."""
    side, total = 32, 0
    for layer, shape in zip(network.layers, network.shapes[::2], strict=True):
        size = 1
        for length in shape:
            size *= length
        if isinstance(layer, Conv):
            side = side - layer.kernel + 1
            total += 2 * size * side * side
            side //= layer.pool
        else:
            total += 2 * size
    return total


def ceilings() -> dict[str, float]:
    """What this GPU does at best: products in each precision (TFLOP/s) and copies (GB/s, read plus write)."""
    found = {}
    for precision in PRECISIONS:
        devices.compute("cuda", precision)
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=devices.PRECISIONS[precision]) for _ in range(2))
        found[f"{precision}_tflops"] = 2 * 8192**3 / seconds(lambda a=a, b=b: a @ b) / 1e12
    x = torch.randn(2**28, device="cuda")
    y = torch.empty_like(x)
    found["copy_gb_per_second"] = 2 * x.numel() * 4 / seconds(lambda: y.copy_(x)) / 1e9
    print(found, flush=True)
    return found


def seconds(work: Callable[[], Any], times: int = 10) -> float:
    """Seconds of one call on the device, by events, the median."""
    work()
    values = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        values.append(start.elapsed_time(end) / 1e3)
    return statistics.median(values)


# Forward passes of the travelling and of the own model in a step; a backward pass counts as two.
PASSES = {"fedavg": (3, 0), "fml": (3, 3), "hbfl": (4, 3)}
VECTORS = {"fedavg": 5, "fml": 10, "hbfl": 21}  # reads and writes of parameter-sized vectors a step cannot avoid


def floor(of: Federation, samples: int, steps: int, best: dict[str, float], precision: str) -> dict[str, float]:
    """The two times below which no program goes: operations over the best rate, compulsory bytes over bandwidth."""
    travelling, own = PASSES[of.method.name]
    share = [len(of.shards[k].train) for k in range(of.clients)]
    per_image = [
        travelling * operations(of.networks[k][0]) + (own * operations(of.networks[k][1]) if of.networks[k][1] else 0)
        for k in range(of.clients)
    ]
    work = samples * sum(n * f for n, f in zip(share, per_image, strict=True)) / sum(share)
    moved = samples * 3072 + steps * VECTORS[of.method.name] * of.networks[0][0].parameters * 4
    return {
        "teraoperations": work / 1e12, "operations_seconds": work / 1e12 / best[f"{precision}_tflops"],
        "gigabytes": moved / 1e9, "bytes_seconds": moved / 1e9 / best["copy_gb_per_second"],
    }  # fmt: skip


def real_or_noise(data: Path | None) -> store.Dataset:
    """CIFAR-10 where the folder has it."""
    return store.load("cifar10", data) if data else common.random_images(50_000, 10_000)


def whole_runs(data: Path | None) -> list[dict[str, Any]]:
    """100 rounds of HBFL's Table 1 and of FedAvg on CNN2, evaluated every round, in each precision, beside eager rounds."""
    best, images, rows = ceilings(), real_or_noise(data), []
    for method, model, limit in (("hbfl", "mixed", 60), ("fedavg", "cnn2", 25)):
        for alpha in (100.0, 0.05):
            for precision in PRECISIONS:
                of = paper_run(method, model, alpha, images, precision)
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                eager = Trainer(of, "eager", lambda: None, lambda: None)
                trainer = Trainer(of, "graphs", lambda: None, lambda: None)
                progress, eagerly, took, samples = begin(of), [], [], 0
                for round in range(100):
                    if round == 5:
                        memory = torch.cuda.max_memory_reserved() / 2**20
                    if round in (5, 50) and alpha == 100.0 and precision == "fp32":  # the same round, eagerly
                        started = time.perf_counter()
                        eager.play(progress)
                        eagerly.append(time.perf_counter() - started)
                    started = time.perf_counter()
                    progress = trainer.play(progress)
                    took.append(time.perf_counter() - started)
                    samples += trainer.samples
                accuracy = [r.value for r in progress.history if (r.model, r.metric) == ("global", "test_accuracy")]
                steps = sum(-(-len(of.shards[k].train) // 128) for k in range(10)) * 5 * 100
                row = {
                    "method": method, "model": model, "alpha": alpha, "precision": precision, "seconds": sum(took),
                    "limit": limit, "first_round": took[0], "median_round": statistics.median(took),
                    "eager_round": statistics.median(eagerly) if eagerly else None,
                    "times_eager": statistics.median(eagerly) / statistics.median(took) if eagerly else None,
                    "samples": samples, "steps": steps, "real_images": data is not None,
                    "best_accuracy": max(accuracy), "last_accuracy": accuracy[-1],
                    "peak_device_mib": memory,
                    "floor": floor(of, samples, steps, best, precision), "ceilings": best,
                    "hardware": torch.cuda.get_device_name(),
                }  # fmt: skip
                print(json.dumps(row), flush=True)
                rows.append(row)
    return rows


def paper_run(method: str, model: str, alpha: float, images: store.Dataset, precision: str) -> Federation:
    """Ten clients of the paper on all images."""
    return common.federation(
        method, common.models(model, method), images, devices.compute("cuda", precision), alpha=alpha, local_epochs=5
    )


def profile() -> dict[str, Any]:
    """What a round of HBFL with mixed clients is made of: time with a kernel running, and the kernels by total time."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    result: dict[str, Any] = {}
    for precision in ("fp32", "bf16"):
        for executor in ("graphs", "eager"):
            of = paper_run("hbfl", "mixed", 100.0, common.random_images(10_000, 2000), precision)
            block = common.local_training(of, EXECUTORS[executor](of, lambda: None))
            block()
            started = time.perf_counter()
            block()
            wall = time.perf_counter() - started
            with record(activities=[ProfilerActivity.CUDA]) as recorded:
                block()
            kernels = [one for one in recorded.key_averages() if one.device_type == DeviceType.CUDA]
            total = sum(one.self_device_time_total for one in kernels) / 1e6
            top = sorted(kernels, key=lambda one: -one.self_device_time_total)[:25]
            result[f"{precision} {executor}"] = {
                "wall_seconds": wall, "sum_of_kernel_seconds": total, "kernels_at_once": total / wall,
                "kernels": sum(one.count for one in kernels),
                "top": [(one.key[:90], one.count, one.self_device_time_total / 1e6) for one in top],
            }  # fmt: skip
            print(precision, executor, f"wall {wall:.3f} s, kernels {total:.3f} s", flush=True)
            for name, count, spent in result[f"{precision} {executor}"]["top"]:
                print(f"  {spent:8.4f} s {count:7d} {name}", flush=True)
    return result


def lanes() -> dict[str, Any]:
    """HBFL with mixed clients by the number of lanes, in turns."""
    result = {}
    for alpha in (100.0, 0.05):
        of = paper_run("hbfl", "mixed", alpha, common.random_images(10_000, 2000), "fp32")
        ways = {n: common.local_training(of, GraphExecutor(of, lambda: None, n)) for n in (1, 2, 4, 6, 8, 10)}
        for n, values in common.alternate({str(n): block for n, block in ways.items()}, 5).items():
            result[f"alpha {alpha} lanes {n}"] = statistics.median(values)
            print(alpha, n, "lanes", statistics.median(values), flush=True)
    return result


def module(name: str, table: str, *options: str) -> Callable[[Path], None]:
    """Another benchmark, as its own command; its table is copied into a folder."""

    def work(out: Path) -> None:
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], check=True)
        shutil.copy(common.HERE / f"{table}-cuda.csv", out)

    return work


def parts(data: Path | None) -> dict[str, tuple[Callable[[Path], Any], int]]:
    """Every part, given the folder for its tables, and its limit in seconds; the most important first."""
    found: dict[str, tuple[Callable[[Path], Any], int]] = {
        "equivalence": (lambda out: equivalence(), 240), "resume": (lambda out: resume(), 120),
        "whole_runs": (lambda out: whole_runs(data), 540), "lanes": (lambda out: lanes(), 120),
        "profile": (lambda out: profile(), 120),
    }  # fmt: skip
    for precision in PRECISIONS:
        options = ("--device", "cuda", "--eager", "--precision", precision)
        found[f"training-{precision}"] = module("training", "training", *options), 240
    for name, limit in (("ways", 120), ("scaling", 300), ("overheads", 120)):
        found[name] = module(name, name, "--device", "cuda"), limit
    if data:
        study = ("--device", "cuda", "--rounds", "20", "--jobs", "4", "--data", str(data))
        for precision in ("bf16", "tf32"):
            found[f"precision-{precision}"] = module("precision", "precision", "--against", precision, *study), 400
    return found


def main() -> None:
    """Run the parts, each in a process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", help="parts, with commas between them")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.gpu: this machine has no usable GPU")
    known = parts(args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part:
        folder = args.out / "tables" / args.part
        folder.mkdir(parents=True, exist_ok=True)
        result = known[args.part][0](folder)
        for table in folder.iterdir():
            table.replace(args.out / f"{args.part}.csv")
        if result is not None:
            (args.out / f"{args.part}.json").write_text(json.dumps(result, indent=1))
        if isinstance(result, dict) and result.get("failed"):
            sys.exit(f"these do not hold: {', '.join(result['failed'])}")
        return
    for name in args.only.split(",") if args.only else known:
        started = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(args.out), "--part", name]
        command += ["--data", str(args.data)] if args.data else []
        with (args.out / f"{name}.log").open("w") as log:
            # A session of its own, so that a part that takes too long is stopped with all that it has started.
            part = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = part.wait(known[name][1])
                told = "done" if code == 0 else f"FAILED with exit code {code}"
            except subprocess.TimeoutExpired:
                os.killpg(part.pid, signal.SIGKILL)
                told = f"stopped after {known[name][1]} s"
        print(f"{name}: {told}, {time.monotonic() - started:.0f} s; see {args.out / name}.log", flush=True)


if __name__ == "__main__":
    main()
