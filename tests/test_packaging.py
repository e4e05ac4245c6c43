"""Tests of the wheel: it is built without a network, contains every package, and works in an empty
folder without the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[1]
LAYERS: Final = ("actors", "aio", "apps", "inbox", "outbox", "storage", "testing", "transport")
SITE: Final = ("docs", "mkdocs.yml", "scripts")  # the sources of the documentation site


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_on_disk() -> list[str]:
    folders = {path.parent for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    return sorted(
        [
            "pyspark_zsq",
            "zsq",
            *(f"zsq.{folder.relative_to(ROOT).as_posix().replace('/', '.')}" for folder in folders),
        ]
    )


def run(*arguments: str | Path, folder: Path, **environment: str) -> str:
    """Return the output of a command that must succeed. Nothing of this repository is on its
    path.
    """
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8", **environment}
    ended = subprocess.run(
        [str(a) for a in arguments],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_every_folder_is_a_package_of_the_wheel() -> None:
    assert sorted(project()["tool"]["setuptools"]["packages"]) == packages_on_disk(), (
        "add the folder to pyproject.toml"
    )
    folders = [
        name.removeprefix("zsq.").replace(".", "/") for name in packages_on_disk() if name != "zsq"
    ]
    assert not [folder for folder in folders if not (ROOT / folder / "__init__.py").is_file()]


def test_the_root_has_no_stray_module() -> None:
    assert sorted(path.name for path in ROOT.glob("*.py")) == ["__init__.py", "__main__.py"], (
        "any other lands in the wheel"
    )


def test_the_checkers_see_every_layer() -> None:
    links = {path.name for path in (ROOT / "typings/zsq").iterdir()}
    assert links - {"__main__.py"} == {"__init__.py", *LAYERS}


def test_what_is_imported_is_required() -> None:
    required = {re.split(r"[^\w-]", line)[0] for line in project()["project"]["dependencies"]}
    assert {
        "pyzmq",
        "msgpack",
        "uvloop",
        "lmdb",
        "crc32c",
        "ddsketch",
        "setproctitle",
        "click",
        "rich",
    } == required
    assert project()["project"]["license"] == "Apache-2.0"


@pytest.mark.parametrize(
    ("system", "missing"),
    [
        ("linux", set()),
        ("darwin", {"lmdb", "setproctitle"}),
        ("win32", {"lmdb", "setproctitle", "uvloop"}),
    ],
)
def test_clients_on_other_systems_require_only_what_exists_there(
    system: str, missing: set[str]
) -> None:
    """uvloop does not exist on Windows. What only the broker needs is not required there."""
    every = [Requirement(line) for line in project()["project"]["dependencies"]]
    wanted = {
        one.name
        for one in every
        if one.marker is None or one.marker.evaluate({"sys_platform": system})
    }
    assert {one.name for one in every} - wanted == missing


def test_each_public_name_can_be_imported() -> None:
    import zsq

    for name in zsq.__all__:
        assert getattr(zsq, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(zsq, "Nothing")  # noqa: B009


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    copy.mkdir()
    parts = (
        "__init__.py",
        "__main__.py",
        "py.typed",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "pyspark_zsq",
        *LAYERS,
        *SITE,
    )
    for name in parts:
        run("cp", "-r", ROOT / name, copy, folder=folder)
    (copy / "build" / "site").mkdir(parents=True)
    (copy / "build" / "site" / "index.html").write_text("what ./scripts/docs has left")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel")
    run(
        *pip,
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        copy,
        folder=folder,
    )
    [found] = folder.glob("zsq-*.whl")
    assert found.name.endswith("-py3-none-any.whl"), "it has no compiled code, so it fits anywhere"
    return found


@pytest.mark.slow
def test_the_wheel_holds_what_the_folders_hold(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
    }
    on_disk |= {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "apps" / "console").rglob("*")
        if path.is_file()
    }
    own = {f"zsq/{name}" for name in (*on_disk, "__init__.py", "__main__.py", "py.typed")}
    assert names == {*own, "pyspark_zsq/__init__.py"}


@pytest.mark.slow
def test_the_wheel_holds_nothing_of_the_documentation_site(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [
        name
        for name in names
        if name.split("/")[0] in (*SITE, "build") or name.endswith((".md", "site/index.html"))
    ] == []


def installed(wheel: Path, folder: Path) -> Path:
    """Return the folder into which the wheel was unpacked, as pip does it."""
    target = folder / "site"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install")
    run(*pip, "--quiet", "--no-deps", "--no-index", "--target", target, wheel, folder=folder)
    return target


@pytest.mark.slow
def test_the_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    target = installed(wheel, tmp_path)
    modules = sorted(
        ".".join(("zsq", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
    )
    program = (
        f"import importlib, zsq\nassert zsq.__file__.startswith({str(target)!r}), zsq.__file__\n"
    )
    program += (
        f"[importlib.import_module(name) for name in {modules!r}]\nprint(zsq.Producer.__name__)\n"
    )
    # The option -I would ignore PYTHONPATH. With PYTHONPATH, Python finds this folder before the
    # editable install of the environment.
    assert (
        run(sys.executable, "-c", program, folder=tmp_path, PYTHONPATH=str(target)) == "Producer\n"
    )
    version = run(sys.executable, "-m", "zsq", "--version", folder=tmp_path, PYTHONPATH=str(target))
    assert re.fullmatch(r"zsq \d+\.\d+\.\d+\n", version)
    assert (target / "bin/zsq").is_file()


SPARK: Final = """
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from zsq.apps.spark import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
said = []
for step in (lambda: None, lambda: register(spark), lambda: register(spark)):
    step()
    try:
        spark.read.format("zsq").load()
    except AnalysisException as error:
        said.append("no topic is given" in str(error))
spark.stop()
print(said)
"""


@pytest.mark.slow
def test_spark_finds_the_wheels_source_by_itself(wheel: Path, tmp_path: Path) -> None:
    """`pyspark_zsq` registers the source without a call. Calling `register` is allowed too, even
    twice.
    """
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        assert "CI" not in os.environ, "continuous integration must have a Java"
        pytest.skip("there is no Java on this machine")
    names = ("JAVA_HOME", "JDK_JAVA_OPTIONS", "PATH")
    java = {name: os.environ[name] for name in names if name in os.environ}
    target = installed(wheel, tmp_path)
    where = {
        "PYTHONPATH": str(target),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **java,
    }
    assert (
        run(sys.executable, "-c", SPARK, folder=tmp_path, **where).split("\n")[-2]
        == "[True, True, True]"
    )


@pytest.mark.slow
def test_without_pyarrow_other_sources_are_not_lost(wheel: Path, tmp_path: Path) -> None:
    """Spark imports `pyspark_zsq` when any Python data source is used for the first time. That
    import must not fail.
    """
    target = installed(wheel, tmp_path)
    program = (
        "import sys; sys.modules['pyarrow'] = None; import pyspark_zsq; "
        "print(hasattr(pyspark_zsq, 'DefaultSource'))"
    )
    assert run(sys.executable, "-c", program, folder=tmp_path, PYTHONPATH=str(target)) == "False\n"
