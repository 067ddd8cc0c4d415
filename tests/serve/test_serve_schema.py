"""The service against its own description, with requests that a machine makes up."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.services import request, saved_run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from oneshot.serve.server import serving
from oneshot.serve.service import Service


def test_the_description_is_whole(tmp_path: Path) -> None:
    with serving(Service(saved_run(tmp_path / "run", 8))) as url:
        about = request(f"{url}/openapi.json").json
    text = json.dumps(about)
    named = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert named <= set(about["components"]["schemas"])
    assert "HTTPValidationError" not in text
    routes = {(m, p) for p, methods in about["paths"].items() for m in methods}
    assert {("post", "/v1/predict"), ("delete", "/v1/facts"), ("get", "/v1/readyz")} <= routes
    assert about["paths"]["/v1/predict"]["post"]["requestBody"]["required"]
    operations = {
        one["operationId"] for methods in about["paths"].values() for one in methods.values()
    }
    names = (
        "predict predict_stream explain explain_many check search_entities entity_facts relations "
        "relation_statistics neighbourhood labels add_facts remove_facts "
        "remove_facts_by_post changes"
    )
    assert operations == {*names.split(), "healthz", "readyz"}
    for path, methods in about["paths"].items():
        for one in methods.values():
            statuses = set(one["responses"])
            assert {"200", "400", "421", "500"} <= statuses, path
            is_open = path in ("/v1/healthz", "/v1/readyz")
            assert is_open or {"401", "429"} <= statuses, path
            assert "requestBody" not in one or {"408", "413", "415", "422"} <= statuses, path
            assert all(value["description"] for value in one["responses"].values())
            assert one["summary"]
    top = about["components"]["schemas"]["PredictIn"]["properties"]["top"]
    assert (top["minimum"], top["maximum"], top["default"]) == (1, 1000, 10)


def tried(tmp_path: Path, *options: str) -> int:
    """Have schemathesis make up requests, which must all be answered as described. → how many"""
    pytest.importorskip("schemathesis", reason="schemathesis is not installed (extra `browser`)")
    with serving(Service(saved_run(tmp_path / "run", 8))) as url:
        about = request(f"{url}/openapi.json").json
        # Names that are there, so that more than refusals is tried; others are accepted, too.
        name = about["components"]["schemas"]["QuestionIn"]["properties"]["entity"]
        entities = {"anyOf": [{"enum": [f"link {n}" for n in range(8)]}, name]}
        relations = {"anyOf": [{"enum": ["next", "after", "before", "after⁻¹"]}, name]}
        for name in ("QuestionIn", "ExplainIn", "AnsweredIn", "CheckIn"):
            shape = about["components"]["schemas"][name]["properties"]
            known = {"entity": entities, "answer": entities, "head": entities, "tail": entities}
            shape |= {key: value for key, value in known.items() if key in shape}
            shape["relation"] = relations
        file = tmp_path / "openapi.json"
        file.write_text(json.dumps(about))
        # A body of too many queries can also be too large, which is a refusal, too.
        refusals = [400, 401, 404, 405, 409, 413, 415, 422]
        settings = f"[checks]\nnegative_data_rejection.expected-statuses = {refusals}\n"
        (tmp_path / "schemathesis.toml").write_text(settings)
        command = [Path(sys.executable).with_name("st"), "run", file, "--url", url]
        command += ["--seed", "1", "--no-color", *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
    cases = re.search(r"(\d+) generated", done.stdout)
    assert cases is not None
    return int(cases[1])


def test_schemathesis_finds_nothing_at_a_glance(tmp_path: Path) -> None:
    assert tried(tmp_path, "--max-examples", "8", "--phases", "examples,fuzzing") > 50


@pytest.mark.slow
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    assert tried(tmp_path, "--max-examples", "500") > 2000
