"""The folder of an application that an installed server loads is its code: an edited prompt shows."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from spanreplay.model import distributions
from spanreplay.runtime.caller import places
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import ASKING, COMMAND, prepare, serve

APP = f"""{ASKING}
from pathlib import Path

from fastapi import FastAPI

app = FastAPI()

@app.get("/ask")
async def answer(question: str):
    return await ask(Path(__file__).with_name("prompt.txt").read_text() + question)
"""


@pytest.mark.parametrize("folder", [".", "src"])
@pytest.mark.sampled(2)
def test_n14_an_edited_prompt_of_a_served_application_is_the_cause(
    tmp_path: Path, provider: Provider, folder: str
) -> None:
    """A server's program is installed; the prompt beside the application that it loads is read as it is now."""
    workplace = prepare(tmp_path, provider, "")
    (tmp_path / folder).mkdir(exist_ok=True)
    workplace.write(f"{folder}/app.py", APP)
    workplace.write(f"{folder}/prompt.txt", "Answer kindly: ")
    command = (*COMMAND, "--app-dir", folder)
    with serve(workplace, command=command) as server:
        httpx.get(f"{server.url}/ask", params={"question": "Why?"}, timeout=TIMEOUT_S)
        server.stop()
    (unit,) = server.units()
    same = workplace.replay(*command, source=unit.run_id)
    assert same.status == 0, same.stderr

    workplace.write(f"{folder}/prompt.txt", "Answer rudely: ")
    changed = workplace.replay(*command, source=unit.run_id)
    assert changed.causes()[0] == ("changed_call", "llm:openai.chat.completions")
    first = changed.verdict["divergences"][0]
    assert "prompt.txt, which the agent reads" in first["cause"]


def test_p3_folders_of_modules_are_code_of_what_an_installed_program_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are once the application is loaded, but not in an earlier recording."""
    monkeypatch.setattr(distributions, "find_started", lambda: "uvicorn")
    monkeypatch.setattr(sys, "argv", [f"{sys.prefix}/bin/uvicorn"])
    monkeypatch.setattr(sys.modules["__main__"], "__file__", f"{sys.prefix}/bin/uvicorn", raising=False)
    package = tmp_path / "project" / "shop_of_test"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    prompt = tmp_path / "project" / "prompts" / "first.txt"
    places.forget_places()
    try:
        assert places.places().is_data(str(prompt))
        monkeypatch.syspath_prepend(str(tmp_path / "project"))
        __import__(package.name)
        assert not places.places().is_data(str(prompt))
        assert places.is_code(str(prompt))
        assert places.places().is_data(str(tmp_path / "orders.csv"))
        kept = tmp_path / "project" / ".server" / "state.json"  # what a server keeps beside the code
        assert places.places().is_data(str(kept))
        assert places.places().is_outside(str(kept))
        assert not places.is_code(str(kept))
        assert not places.places().is_data(str(tmp_path / "project" / ".env"))
        places.set_modules(are_code=False)
        assert places.places().is_data(str(prompt))
    finally:
        sys.modules.pop(package.name, None)
        places.set_modules(are_code=True)
        places.forget_places()
