"""The MLflow store: where it is, how it is reached, and that it may have moved."""

import logging
import os
import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from lsvit.text import one_line, user_path
from pipeline.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient

VARIABLE = "MLFLOW_TRACKING_URI"
DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"
MEMORY = ":memory:"
NO_FOLDERS = ("databricks", "uc")  # addresses without a colon
LOCATIONS = (  # columns of a store's tables that say where artifacts lie
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def store_uri(root: Path) -> str:
    """Return `MLFLOW_TRACKING_URI`, or the sqlite store at the repository's root.

    A relative path begins at the root: a queued experiment runs in a folder of its own.
    """
    uri = os.environ.get(VARIABLE) or f"sqlite:///{DATABASE}"
    if is_sqlite(uri):
        scheme, _, path = uri.partition(":///")
        if path in ("", MEMORY):
            return uri
        return f"{scheme}:///{Path(_escape(root.resolve())) / user_path(path)}"
    folder = uri.removeprefix("file:")  # MLFLOW_ALLOW_FILE_STORE lets MLflow take a folder
    if ":" in folder or folder.startswith(("//", *NO_FOLDERS)):
        return uri
    return str(root.resolve() / folder)


def is_sqlite(uri: str) -> bool:
    """True for "sqlite:" and "sqlite+pysqlite:"."""
    return uri.startswith("sqlite")


def database_of(uri: str) -> Path:
    """Return the file that a sqlite address names."""
    return Path(unquote(uri.partition(":///")[2].partition("?")[0]))


def _escape(path: Path) -> str:
    """Write a path so that SQLAlchemy reads it as it is."""
    return str(path).replace("%", "%25").replace("?", "%3F")


def connect(root: Path, retries: int) -> "MlflowClient":
    """Return a client of the store. Imports MLflow.

    Args:
        root: the real repository.
        retries: of a request to a server.

    Raises:
        Exception: what MLflow raises.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(retries))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(5 * retries))
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    uri = store_uri(root)
    if is_sqlite(uri):
        database = database_of(uri)
        if database == root.resolve() / DATABASE:
            _create_store(database)
        if database.is_file():
            _refuse_newer(database)
        mlflow.MlflowClient(uri)  # first says what to do with a store of another MLflow
        if database.is_file():
            _follow_move(database, root.resolve())
    return mlflow.MlflowClient(uri)


def _refuse_newer(database: Path) -> None:
    """Raise RuntimeError if a newer MLflow made a store: `mlflow db upgrade`, as MLflow advises
    then, cannot help."""
    import mlflow

    versions = Path(mlflow.__file__).parent / "store" / "db_migrations" / "versions"
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        for (version,) in connection.execute("SELECT version_num FROM alembic_version"):
            if not any(versions.glob(f"{version}_*.py")):
                raise RuntimeError(
                    f"of a newer MLflow than {mlflow.__version__}; move {database} away, "
                    f"or let {VARIABLE} name another store"
                )


def _create_store(path: Path) -> None:
    """Create the sqlite store under another name: a kill must leave no half-migrated store."""
    if path.exists():
        return
    import mlflow

    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    mlflow.MlflowClient(f"sqlite:///{_escape(partial.resolve())}").search_experiments()
    partial.replace(path)


def _follow_move(database: Path, root: Path) -> None:
    """Let the runs of a store that was moved or copied with its clone find their artifacts.

    One that was copied without them leaves those of the original alone. A store elsewhere may be
    shared with another clone, whose artifacts stay where they are.
    """
    new = root / ARTIFACTS
    here = database.parent == root
    with closing(sqlite3.connect(database)) as connection, connection:
        rows = connection.execute("SELECT artifact_location FROM experiments").fetchall()
        for old in {location.rpartition("/")[0] for (location,) in rows} - {new.as_uri()}:
            inside = connection.execute(
                "SELECT replace(artifact_uri, ?, '') FROM runs", (f"{old}/",)
            )
            path = Path(unquote(urlsplit(old).path))
            gone = not path.exists()
            found = any((new / unquote(run)).exists() for (run,) in inside)
            moved = (here and (found or gone)) or (found and gone)
            copied = here and not moved and (path.parent / "dvc.yaml").is_file()
            if path.name != ARTIFACTS or not (moved or copied):
                continue
            for table, column in LOCATIONS:
                connection.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?, ?)",  # noqa: S608
                    (f"{old}/", f"{new.as_uri()}/"),
                )
            line = f"{database}: artifacts are looked for in {new}, no longer in {path}"
            if copied:
                line += f", another clone's; `cp -r {path} {root}` brings them"
            print(line)


def check_store(root: Path) -> None:
    """Check that the store which `MLFLOW_TRACKING_URI` names answers.

    Raises:
        UserError: it does not.
    """
    if not os.environ.get(VARIABLE):
        return
    uri = store_uri(root)
    try:
        if uri in ("sqlite://", f"sqlite:///{MEMORY}"):
            raise ValueError("a store in memory is gone when a stage ends")
        connect(root, retries=1).search_experiments(max_results=1)
    except Exception as error:  # a store may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == "mlflow":
            return  # nothing is tracked, and stages say so
        raise UserError(
            f"{VARIABLE}: found {without_password(uri)!r}, where nothing can be logged "
            f"({describe(error)}), "
            f"accepted: sqlite:///FILE, a server that runs, or none ({DATABASE})"
        ) from None


def describe(error: BaseException) -> str:
    """The kind and the whole text of an error, on one line."""
    return f"{type(error).__name__}: {without_password(one_line(error))}"


def without_password(text: str) -> str:
    """Text in which no address has its password, which may have "@" and "/", nor what follows "?"
    and "=", such as a token."""
    text = re.sub(r"(//[^/\s:@]*):\S+@", r"\1:***@", text)
    return re.sub(r"([?&][\w-]+=)[^&\s'\")]+", r"\1***", text)
