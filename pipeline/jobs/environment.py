"""Variables of the environment that libraries read when they are imported, set before that."""

import getpass
import os
import sys
from fnmatch import fnmatch
from pathlib import Path

from pipeline.jobs.machine import available_cores, seen_cores, use_short_temporary_folder
from pipeline.jobs.processes import root

# Inherited from a notebook, a shell's settings, a git hook. They would change results, stop a
# library, or bind all workers to one core, and no key of params.yaml shows them.
SET_ASIDE = (
    "MPLBACKEND",
    "MATPLOTLIBRC",
    "TIMM_*",  # other kernels, other classes of models
    "NUMBA_*",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_FORCE_*",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_*",  # old names of ONEDNN_*
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_*",
    "MLFLOW_ACTIVE_MODEL_ID",
    "MLFLOW_ENABLE_*",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "PYTHONOPTIMIZE",
)
KEPT = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_CACHE_DIR")
REPEATABLE = (":4096:8", ":16:8")  # values of cuBLAS's variable with which it repeats its results
CACHES = ("MPLCONFIGDIR", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def prepare_environment() -> None:
    """Set the variables for this process and those that it starts.

    Call it before other libraries are imported.

    Raises:
        UserError: there is no temporary folder for sockets.
    """
    for name in list(os.environ):
        if name not in KEPT and any(fnmatch(name, pattern) for pattern in SET_ASIDE):
            del os.environ[name]
    if os.environ.pop("PYTHONWARNINGS", ""):
        sys.warnoptions.clear()  # workers would make errors of libraries' warnings
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG", REPEATABLE[0]) not in REPEATABLE:
        del os.environ["CUBLAS_WORKSPACE_CONFIG"]
    use_short_temporary_folder()
    cores = available_cores()
    if cores < seen_cores():  # a library takes a thread for every core it sees
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))
    use_writable_caches()


def use_writable_caches() -> None:
    """Where no home can be written, let libraries keep their caches below .lsvit/.

    Weights that lie in such a home are still found.
    """
    caches = root().resolve() / ".lsvit" / "cache"
    try:
        home = Path.home()
    except RuntimeError:  # a user without a name and a variable
        home = caches
        os.environ["HOME"] = str(home)
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = str(os.getuid())
    used = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    writable = used if used.exists() else used.parent
    if all(os.access(folder, os.W_OK | os.X_OK) for folder in (writable, home)):
        return
    os.environ["XDG_CACHE_HOME"] = str(caches)
    for name in CACHES:
        os.environ.setdefault(name, str(caches / name.lower()))
    if (used / "huggingface").is_dir():
        os.environ.setdefault("HF_HOME", str(used / "huggingface"))
