"""Which planted mistakes of devices `tests/test_pretended_gpu.py` finds without a GPU.

    uv run python benchmarks/device_faults.py

writes benchmarks/device_faults.json, in about ten minutes on two cores.

Each makes a run on CUDA fail, or leaves it on the CPU; those that CUDA forgives (an index on the
CPU, an assignment between devices) are not among them.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine, write

ROOT = Path(__file__).parent.parent
FAULTS = [
    (
        "pipeline/training/scoring.py",
        "return model.to(execution.device), execution",
        "return model, execution",
    ),
    (
        "pipeline/training/scoring.py",
        "torch.zeros(3, dtype=dtype, device=device)",
        "torch.zeros(3, dtype=dtype)",
    ),
    (
        "lsvit/position.py",
        "torch.full(answers.shape[:1], depth, device=answers.device)",
        "torch.full(answers.shape[:1], depth)",
    ),
    (
        "pipeline/data/splits.py",
        "torch.tensor(std, device=device).expand",
        "torch.tensor(std).expand",
    ),
    (
        "pipeline/data/splits.py",
        "torch.from_numpy(self.maps.labels).to(self.device)",
        "torch.from_numpy(self.maps.labels)",
    ),
    (
        "pipeline/data/splits.py",
        "self._normalised(images.to(self.device)), labels.to(self.device)",
        "self._normalised(images), labels",
    ),
    ("lsvit/routed.py", "row[order].to(state.device, non_blocking=True)", "row[order]"),
    ("lsvit/routed.py", "row.to(state.device, non_blocking=True)", "row"),
    (
        "lsvit/routed.py",
        "torch.tensor(gather_index).to(state.device, non_blocking=True)",
        "torch.tensor(gather_index)",
    ),
    (
        "papers/exits/compute/dynamic.py",
        "branch.to(next(model.parameters()).device).eval()",
        "branch.eval()",
    ),
    (
        "papers/exits/compute/dynamic.py",
        "torch.arange(len(images), device=images.device)\n",
        "torch.arange(len(images))\n",
    ),
    ("papers/exits/compute/dynamic.py", "num_classes, device=images.device)", "num_classes)"),
    ("papers/exits/compute/frozen.py", "branch = branch.to(device)", "branch = branch"),
    (
        "papers/exits/compute/frozen.py",
        "branch(batch.to(execution.device).float())",
        "branch(batch.float())",
    ),
    (
        "papers/inversion/compute/descent.py",
        "torch.tensor(mean, device=device).view",
        "torch.tensor(mean).view",
    ),
    (
        "papers/inversion/compute/descent.py",
        "generator=generator).to(images.device)",
        "generator=generator)",
    ),
    (
        "papers/inversion/compute/descent.py",
        "torch.tensor(descent.lrs, device=images.device)[best]",
        "torch.tensor(descent.lrs)[best]",
    ),
    (
        "papers/inversion/compute/class_images.py",
        "noise(size, seed).to(device)",
        "noise(size, seed)",
    ),
    (
        "papers/inversion/compute/class_images.py",
        "judge).to(images.device).eval()",
        "judge).eval()",
    ),
    (
        "papers/layershuffle/compute/analysis.py",
        "change.float().norm(dim=-1).cpu()",
        "change.float().norm(dim=-1)",
    ),
]


def found(copy: Path) -> bool:
    """Whether a test fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "tests/test_pretended_gpu.py"]
    return subprocess.run(command, cwd=copy, capture_output=True, check=False).returncode == 1


def main() -> None:
    """Plants one fault after another in a clone."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "-q", ROOT, copy], check=True)
        for file, right, _ in FAULTS:
            assert (copy / file).read_text("utf-8").count(right) == 1, (file, right)
        assert not found(copy), "the tests fail without a fault"
        rows = []
        for file, right, wrong in FAULTS:
            text = (copy / file).read_text("utf-8")
            (copy / file).write_text(text.replace(right, wrong), "utf-8")
            rows.append({"file": file, "right": right, "wrong": wrong, "found": found(copy)})
            print(rows[-1], flush=True)
            (copy / file).write_text(text, "utf-8")
    write(Path(__file__).with_suffix(".json"), {"machine": machine(), "faults": rows})


if __name__ == "__main__":
    main()
