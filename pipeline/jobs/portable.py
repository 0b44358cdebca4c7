"""The same bytes on every x86-64 processor with AVX2: variables that libraries read at import.

That holds for the processors of one maker. MKL has other AVX2 kernels for Intel than for AMD, and
only MKL_CBWR=COMPATIBLE takes the same for both, at 1.5 to 2 times the time of a training step.
"""

import locale
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

import yaml

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # convolutions of torch
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",  # matrix products of torch
    "OPENBLAS_CORETYPE": "Haswell",  # matrix products of numpy, scipy, scikit-learn
    "OPENBLAS_NUM_THREADS": "1",  # how a product is cut into parts
    "NUMBA_CPU_NAME": "haswell",  # UMAP
    "NUMBA_CPU_FEATURES": "+avx2",
}
# What numpy has beyond AVX2, and a flag of the processors that have it: it warns of what is absent.
NUMPY_VARIABLE = "NPY_DISABLE_CPU_FEATURES"
NUMPY_FEATURES = {"X86_V4": "avx512bw", "AVX512_ICL": "avx512_vbmi2", "AVX512_SPR": "avx512_fp16"}


def use_utf8() -> None:
    """Start this process anew in Python's UTF-8 mode if the locale has another encoding.

    Files, their names, the console and what other programs print are then UTF-8, here and in the
    processes that this one starts.
    """
    console = os.environ.pop("PYTHONIOENCODING", None)  # it would win over the mode
    if console or (not sys.flags.utf8_mode and locale.getencoding().lower() != "utf-8"):
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606


def _cpuinfo(*names: str) -> str:
    """What Linux says of the first core under one of these names; nothing on other systems."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in names:
                return value.strip()
    return ""


def cpu_name() -> str:
    """The processor, as its maker calls it."""
    return _cpuinfo("model name") or platform.machine()


def cpu_flags() -> set[str]:
    """Flags of the processor, as Linux names them."""
    return set(_cpuinfo("flags", "Features").split())


def cpu_kind() -> str:
    """What the bytes of results may depend on: "AuthenticAMD, AVX-512"."""
    flags = cpu_flags()
    widest = "no AVX2"
    if "avx2" in flags:
        widest = "AVX-512" if "avx512f" in flags else "AVX2"
    return f"{_cpuinfo('vendor_id') or platform.machine()}, {widest}"


def variables() -> dict[str, str]:
    """The variables for this processor; none where it has no AVX2."""
    flags = cpu_flags()
    if "avx2" not in flags:
        return {}
    disabled = [name for name, flag in NUMPY_FEATURES.items() if flag in flags]
    return VARIABLES | ({NUMPY_VARIABLE: " ".join(disabled)} if disabled else {})


def use_portable_kernels(portable: bool = True) -> None:
    """Set the variables for this process and those that it starts, where the user set none.

    Call it before numpy or torch are imported.
    """
    if portable:
        for name, value in variables().items():
            os.environ.setdefault(name, value)


def read_portable(file: Path) -> bool:
    """The key `portable` of params.yaml. A file with a mistake is for its proper reader."""
    with suppress(OSError, ValueError, yaml.YAMLError):
        content = yaml.load(file.read_text("utf-8"), yaml.CSafeLoader)
        if isinstance(content, dict):
            return content.get("portable") is not False
    return True


def only_avx2() -> bool:
    """True if torch was told to use AVX2: then bf16 is slow, whatever the processor has."""
    return os.environ.get("ATEN_CPU_CAPABILITY") == VARIABLES["ATEN_CPU_CAPABILITY"]


def describe_exceptions() -> list[str]:
    """Why the bytes may differ from those of other processors in spite of `portable: true`."""
    wanted = variables()
    if not wanted:
        return ["portable: true needs an x86-64 processor with AVX2; here bytes may differ"]
    return [
        f"{name}={os.environ.get(name, '')} in the environment; "
        f"portable: true would set {value}, bytes may differ"
        for name, value in wanted.items()
        if os.environ.get(name) != value
    ]
