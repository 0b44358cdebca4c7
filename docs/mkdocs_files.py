"""MkDocs' hook: the site has every committed file, where it lies in the repository.

So a link from one file to another works in the site as it does on a forge.
"""

import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those that git knows. The theme's stay."""
    command = ["git", "ls-files", "-z", "--", ":!dvc_remote", ":!tests", ":!.*"]
    names = subprocess.run(
        command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    ).stdout
    site = [file for file in files if file.src_dir != config.docs_dir]
    for name in names.rstrip("\0").split("\0"):
        site.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return Files(site)
