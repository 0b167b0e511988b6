"""Sweeps whose traces and results are in an object store: moto's S3 server on this machine, over HTTP."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

import isotherm
from conftest import contents

server = pytest.importorskip("moto.server", reason="moto is not installed")
SPACE = isotherm.Space(presets=["prcl"], params=["age=1s..20s:6", "size=4K,2M"], max_slowdown="5%")


@pytest.fixture(scope="module")
def store() -> Iterator[pyarrow.fs.FileSystem]:
    """A bucket named `fleet`, reached as any S3 is: by what the environment says of it."""
    thread = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    thread.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    host, port = thread.get_host_and_port()
    said = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in said.items():
            patch.setenv(name, value)
        files, _ = pyarrow.fs.FileSystem.from_uri("s3://fleet?allow_bucket_creation=true")
        files.create_dir("fleet")
        yield files
    thread.stop()


def put(store: Any, source: Path, name: str) -> str:
    with store.open_output_stream(name) as file:
        file.write(source.read_bytes())
    return f"s3://{name}"


def test_a_sweep_of_an_object_store_is_the_same_bytes(store: Any, trace_path: Path, tmp_path: Path) -> None:
    url = put(store, trace_path, "fleet/traces/a.parquet")
    result = isotherm.sweep([url], SPACE, output="s3://fleet/results", chunk=5)
    assert not result.errors()
    here = isotherm.sweep([trace_path], SPACE)
    columns = ["point", "settings", "saved_share", "slowdown", "digest"]
    assert result.to_arrow(columns).equals(here.to_arrow(columns))
    assert len(isotherm.SweepResult.open("s3://fleet/results")) == len(SPACE)
    local = tmp_path / "local"
    isotherm.sweep([url], SPACE, output=local, chunk=5)
    for name, content in contents(local).items():
        with store.open_input_stream(f"fleet/results/{name}") as file:
            assert file.read() == content


def test_a_sweep_in_an_object_store_goes_on(store: Any, trace_path: Path) -> None:
    url = put(store, trace_path, "fleet/traces/b.parquet")

    class Enough(Exception):
        pass

    def enough(done: int, _: int) -> None:
        if done >= 5:
            raise Enough

    with pytest.raises(Enough):
        isotherm.sweep([url], SPACE, output="s3://fleet/broken", chunk=5, progress=enough)
    seen: list[int] = []
    isotherm.sweep([url], SPACE, output="s3://fleet/broken", chunk=5, progress=lambda done, _: seen.append(done))
    assert seen[0] > 0
    assert seen[-1] == len(SPACE)


def test_what_is_not_in_the_store_is_a_row(store: Any, trace_path: Path) -> None:
    good = put(store, trace_path, "fleet/traces/c.parquet")
    missing, nowhere = "s3://fleet/traces/none.parquet", "s3://no-bucket/a.parquet"
    errors = isotherm.sweep([good, missing, nowhere], SPACE).errors()
    assert set(errors) == {missing, nowhere}
    assert "none.parquet" in errors[missing]
    assert "no-bucket" in errors[nowhere]
