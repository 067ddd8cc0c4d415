"""Tests of what the page offers beyond questions and answers, in a real browser."""

import csv
import io
import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import DESKTOP, PHONE, answered, ask, explained, settled, watched
from tests.support.services import request, saved_run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed (the extra `browser`)"
)
from oneshot.reasoner.reasoner import Reasoner  # noqa: E402
from oneshot.serve.server import serving  # noqa: E402
from oneshot.serve.service import Service  # noqa: E402
from oneshot.serve.settings import ServeSettings  # noqa: E402

expect = sync_api.expect


def saved_file(page: Any, name: str) -> tuple[str, bytes]:
    """The name and the content of the file that a button saves."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=name, exact=True).click()
    download = waiting.value
    return download.suggested_filename, Path(download.path()).read_bytes()


def test_examples_lead_to_answers(page: Any) -> None:
    examples = page.locator("#examples a")
    expect(examples.first).to_be_visible()
    assert examples.count() == 3  # one per relation
    assert page.title() == "oneshot: ask the graph"
    examples.first.click()
    expect(page.locator("#answers tbody tr").first).to_be_visible()
    expect(page.locator("#examples")).to_be_hidden()
    page.go_back()
    expect(page).to_have_title("oneshot: ask the graph")
    expect(page.locator("#examples")).to_be_visible()
    expect(page.locator("#answers-card")).to_be_hidden()
    expect(page.locator("#around")).to_be_hidden()


def test_examples_beside_an_entity_that_no_path_can_name(page: Any, url: str) -> None:
    """Browsers resolve `..` in a path, so its facts cannot be read."""
    assert request(f"{url}/v1/facts", {"facts": [["..", "next", "link 1"]]}).status == 200
    page.reload()
    expect(page.locator("#examples a")).to_have_count(3)
    expect(page.locator("#problem")).to_have_text("")
    page.goto(f"{url}/#entity=..&relation=next")
    expect(page.locator("#answers-title")).to_have_text("(.., next, ?)")


def test_examples_in_both_directions(page: Any, url: str) -> None:
    """Also for an address that has no question."""
    facts = [[f"link {n}", "after", "hub"] for n in range(30)]  # which is the head of none
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.goto(f"{url}/#nothing")
    page.reload()
    examples = page.locator("#examples a")
    expect(examples.first).to_have_text("(?, after, hub)")
    forms = [
        re.fullmatch(r"\((\?, \w+, [\w ]+|[\w ]+, \w+, \?)\)", text)
        for text in examples.all_inner_texts()
    ]
    assert all(forms)
    examples.first.click()
    expect(page.locator("#answers-title")).to_have_text("(hub, after⁻¹, ?)")


def test_examples_have_facts_rather_than_new_names(page: Any, url: str) -> None:
    facts = [[f"new {n}", "next", "link 1"] for n in range(70)]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.reload()
    examples = page.locator("#examples a")
    expect(examples).to_have_count(3)
    assert not [text for text in examples.all_inner_texts() if "new" in text]


def test_links_to_questions_and_explanations(page: Any, url: str) -> None:
    answered(page, "link 12", "after")
    expect(page).to_have_title("(link 12, after, ?) · oneshot")
    answer = explained(page, 2)
    expect(page).to_have_title(f"Why {answer}? (link 12, after, ?) · oneshot")
    link = page.url
    # The same in a new tab, and back to the question.
    other = page.context.new_page()
    other.goto(link)
    expect(other.locator("#why-title")).to_have_text(f"Why {answer}?")
    settled(other)
    expect(other.locator("tr[aria-current=true]")).to_have_attribute("data-answer", str(answer))
    other.close()
    page.go_back()
    expect(page).to_have_title("(link 12, after, ?) · oneshot")
    expect(page.locator("#why-title")).to_have_text("Explanation")
    expect(page.locator("#drawing")).to_be_hidden()
    expect(page.locator("#answers tr[aria-current=true]")).to_have_count(0)
    page.go_forward()
    expect(page.locator("#why-title")).to_have_text(f"Why {answer}?")


def test_more_answers_and_filters(page: Any, url: str) -> None:
    ask(page, "link 12", "after")
    rows = page.locator("#answers tbody tr")
    expect(rows).to_have_count(10)
    expect(page.locator("#find")).to_be_hidden()
    page.get_by_role("button", name="More answers").click()
    expect(rows).to_have_count(14)  # all others of the subgraph
    expect(page.get_by_role("button", name="More answers")).to_be_hidden()
    assert "top=30" in page.url
    page.get_by_label("Find in the answers").fill("LINK 1")
    shown = [row.get_attribute("data-answer") for row in rows.all() if row.is_visible()]
    assert shown
    assert all(str(name).startswith("link 1") for name in shown)
    # By probability and by type, on the service.
    page.locator("#filters summary").click()
    asked = {"questions": [{"entity": "link 12", "relation": "after"}], "top": 30}
    answers = request(f"{url}/v1/predict", asked).json["results"][0]["answers"]
    probabilities = sorted((answer["probability"] for answer in answers), reverse=True)
    # Between the two probabilities that are furthest apart: the training decides which.
    gaps = [high - low for high, low in pairwise(probabilities)]
    last = gaps.index(max(gaps))
    limit = 50 * (probabilities[last] + probabilities[last + 1])
    page.get_by_label("Minimum probability in %").fill(f"{limit:.6f}")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(rows).to_have_count(last + 1)
    expect(page.locator("#status")).to_contain_text(f"{last + 1} answer")
    page.get_by_label("Minimum probability in %").fill("")
    page.locator("#type-relation").fill("next")
    page.locator("#type-entity").fill("link 14")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-answer", "link 13")
    page.reload()
    expect(rows).to_have_count(1)
    expect(page.locator("#type-entity")).to_have_value("link 14")


def test_fitting_relations_come_first_with_their_counts(page: Any, url: str) -> None:
    facts = [["newcomer", "before", f"link {n}"] for n in range(3)]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.get_by_label("Entity", exact=True).fill("newcomer")
    page.get_by_role("option", name="newcomer", exact=True).click()
    expect(page.locator("#facts li")).to_have_count(3)
    page.locator("#relation").focus()
    options = page.locator("#relation + [role=listbox] [role=option]")
    expect(options.first).to_contain_text("before 3 here")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#relation")).to_have_value("before")
    page.locator("#statistics summary").click()
    expect(page.locator("#statistics dl")).to_contain_text("different heads")
    expect(page.locator("#statistics dl")).to_contain_text("newcomer (3)")


def test_facts_in_pages(page: Any, url: str) -> None:
    facts = [[f"n{n:03}", "next", "hub"] for n in range(120)]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.goto(f"{url}/#entity=hub&relation=next")
    expect(page.locator("#facts-title")).to_have_text("Facts about hub (120)")
    seen: list[str] = []
    for rows, part in ((50, "1–50 of 120"), (50, "51–100 of 120"), (20, "101–120 of 120")):
        expect(page.locator("#facts-pages")).to_contain_text(part)
        expect(page.locator("#facts li")).to_have_count(rows)
        seen += page.locator("#facts li span").all_inner_texts()
        if rows == 50:
            page.get_by_role("button", name="Next facts").click()
    assert len(set(seen)) == 120
    expect(page.get_by_role("button", name="Next facts")).to_be_disabled()
    page.get_by_role("button", name="Previous facts").click()
    expect(page.locator("#facts-pages")).to_contain_text("51–100 of 120")


def test_changes_are_listed_undone_and_compared(page: Any, url: str) -> None:
    answered(page, "link 12", "after")
    expect(page.locator("#changes-card")).to_be_hidden()
    expect(page.locator("#answers th.before")).to_be_hidden()
    page.get_by_role("button", name="Remove link 12, next, link 13").click()
    expect(page.locator("#changes-title")).to_have_text("Changes (1 fact)")
    moment = page.locator("#changes li time")
    shown = datetime.strptime(moment.inner_text(), "%b %d, %Y, %I:%M %p")
    stored = datetime.fromisoformat(moment.get_attribute("datetime"))
    assert stored.astimezone().replace(tzinfo=None, second=0) == shown
    assert abs(stored - datetime.now(UTC)) < timedelta(minutes=5)
    expect(page.locator("#changes li")).to_contain_text(re.compile(r"removed .*, version 1"))
    # The same question before and after.
    expect(page.locator("#answers th.before")).to_be_visible()
    expect(page.locator("#compared")).to_contain_text(
        "Compared with version 0 of the facts; this is version 1."
    )
    cells = page.locator("#answers td.before").all_inner_texts()
    assert len(cells) == 10
    assert all(cell in ("new", "same") or cell[0] == "#" for cell in cells)
    page.get_by_role("button", name="Undo: removed link 12, next, link 13").click()
    expect(page.locator("#changes li")).to_contain_text(
        re.compile("added .*, version 2, as in the original graph")
    )
    expect(page.locator("#changes li button")).to_have_count(0)
    facts = request(f"{url}/v1/entities/link%2012").json["facts"]
    assert ["link 12", "next", "link 13"] in facts
    # Another question is not compared.
    ask(page, "link 5", "after")
    expect(page.locator("#answers-title")).to_have_text("(link 5, after, ?)")
    expect(page.locator("#answers th.before")).to_be_hidden()


def test_the_focus_stays_after_a_change_by_keyboard(page: Any, url: str) -> None:
    answered(page, "link 12", "after")
    page.get_by_role("button", name="Remove link 12, next, link 13").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Undo", exact=True)).to_be_focused()
    expect(page.locator("#compared")).to_contain_text("Compared with version 0")
    page.get_by_role("button", name="Undo: removed link 12, next, link 13").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#changes li")).to_contain_text("as in the original graph")
    undo = page.get_by_role("button", name="Undo", exact=True)
    expect(undo).to_be_focused()
    for outcome in ("Removed", "Added"):
        page.keyboard.press("Enter")
        expect(page.locator("#added")).to_contain_text(f"{outcome}: link 12, next, link 13.")
        expect(undo).to_be_focused()
    expect(page.locator("#compared")).to_contain_text("this is version 4")
    page.get_by_role("button", name="More answers").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#answers-title")).to_be_focused()


def test_many_changes_in_pages(page: Any, url: str) -> None:
    facts = [[f"n{n:02}", "next", "link 1"] for n in range(23)]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.reload()
    expect(page.locator("#changes-title")).to_have_text("Changes (23 facts)")
    expect(page.locator("#changes li")).to_have_count(10)
    page.get_by_role("button", name="Next changes").focus()
    for _ in range(2):  # the focus stays on the button
        page.keyboard.press("Enter")
        expect(page.locator("#changes li").first).to_be_visible()
        page.wait_for_timeout(100)
    expect(page.locator("#changes li")).to_have_count(3)
    expect(page.get_by_role("button", name="Previous changes")).to_be_focused()


def test_is_this_fact_so(page: Any, url: str) -> None:
    answered(page, "link 3", "next")
    page.locator("#label").fill("next")
    page.locator("#tail").fill("link 4")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Check the fact").click()
    checked = page.locator("#checked")
    expect(checked).to_contain_text("In the graphyes")
    expect(checked).to_contain_text("of 30")
    expect(checked.locator("li").first).to_contain_text("link 3")
    expect(page).to_have_title("link 3, next, link 4? · oneshot")
    page.reload()  # the URL has the fact
    expect(checked).to_contain_text("In the graphyes")
    page.locator("#tail").fill("lnik 9")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Check the fact").click()
    expect(page.locator("#add-problem")).to_contain_text("unknown entity 'lnik 9'")
    expect(checked).to_have_text("")


def test_a_fact_of_an_entity_with_itself_has_no_support(page: Any, url: str) -> None:
    page.goto(f"{url}/#head=link+3&label=next&tail=link+3")
    checked = page.locator("#checked")
    expect(checked).to_contain_text(
        "An entity counts as related to itself only if another fact of the graph relates it to "
        "itself; link 3 has no such fact."
    )
    expect(checked.locator("li")).to_have_count(0)
    # With another one, the paths count.
    assert request(f"{url}/v1/facts", {"facts": [["link 3", "after", "link 3"]]}).status == 200
    page.get_by_role("button", name="Check the fact").click()
    expect(checked.locator("li").first).to_contain_text("link 3")
    expect(checked).not_to_contain_text("no such fact")


def test_the_latest_check_is_shown(page: Any, url: str) -> None:
    """Also if the response to an earlier one comes later."""
    held: list[Any] = []
    page.route("**/v1/check", lambda route: route.continue_() if held else held.append(route))
    with page.expect_request("**/v1/check"):
        page.goto(f"{url}/#head=link+5&label=next&tail=link+6")
    page.goto(f"{url}/#head=link+7&label=next&tail=link+8")
    fact = page.locator("#checked .fact")
    expect(fact).to_have_text("link 7 —next→ link 8")
    with page.expect_response("**/v1/check"):
        held[0].continue_()
    page.wait_for_timeout(300)
    expect(fact).to_have_text("link 7 —next→ link 8")
    expect(page).to_have_title("link 7, next, link 8? · oneshot")


def test_beginnings_and_spaces_of_names_in_a_fact(page: Any, url: str) -> None:
    fields = ("#head", "#label", "#tail")

    def fill(*names: str) -> None:
        for field, text in zip(fields, names, strict=True):
            page.locator(field).fill(text)
        page.keyboard.press("Escape")

    fill("link 29", "ne", " link 28 ")
    page.get_by_role("button", name="Check the fact").click()
    expect(page).to_have_title("link 29, next, link 28? · oneshot")
    fill("newcomer ", "next", " link 2")
    page.get_by_role("button", name="Add the fact").click()
    expect(page.locator("#added")).to_contain_text(
        "Added: newcomer, next, link 2. New entity: newcomer."
    )
    # A new entity may have the beginning of another's name.
    fill("newcome", "next", "link 2")
    page.get_by_role("button", name="Add the fact").click()
    expect(page.locator("#added")).to_contain_text("New entity: newcome.")
    assert request(f"{url}/v1/entities/newcome").json["facts"] == [["newcome", "next", "link 2"]]


def test_answers_are_saved_and_asked_again_by_curl(page: Any, url: str) -> None:
    name = '=1+1,"quoted"'  # a formula, for a spreadsheet
    facts = [["link 2", "next", name], [name, "next", "it's"]]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    answered(page, "link 2", "next")
    file, content = saved_file(page, "CSV")
    assert file == "link-2-next.csv"
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert len(rows) == 10
    assert rows[0].keys() == {
        *("entity", "relation", "rank", "answer", "score", "probability", "known")
    }
    assert f"'{name}" in [row["answer"] for row in rows]
    _, content = saved_file(page, "JSON")
    result = json.loads(content)
    assert result["answers"][0]["entity"] == rows[0]["answer"].lstrip("'")
    page.goto(f"{url}/#entity=it%27s&relation=next&inverse=1")
    expect(page.locator("#answers-title")).to_have_text("(it's, next⁻¹, ?)")
    page.get_by_role("button", name="curl").click()
    command = page.get_by_label("Command for a shell").input_value()
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    answers = json.loads(done.stdout)["results"][0]["answers"]
    assert len(answers) == page.locator("#answers tbody tr").count()


def test_the_drawing_is_saved(page: Any) -> None:
    answered(page, "link 12", "after")
    explained(page)
    page.get_by_role("button", name="Zoom in").click()
    file, content = saved_file(page, "SVG")
    assert file.startswith("why-link-")
    root = ElementTree.fromstring(content)
    assert root.attrib["viewBox"].startswith("0 0 ")  # the whole drawing
    assert b"link 12" in content
    _, image = saved_file(page, "PNG")
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    width = int.from_bytes(image[16:20], "big")
    assert width == pytest.approx(2 * float(root.attrib["width"]), abs=1)
    assert len(image) > 10_000


def view(page: Any) -> list[float]:
    box = page.locator("#drawing > svg").get_attribute("viewBox")
    return [float(part) for part in str(box).split()]


def test_the_drawing_is_moved_and_enlarged(page: Any) -> None:
    page.set_viewport_size({"width": 1280, "height": 1400})
    answered(page, "link 12", "after")
    explained(page)
    whole = view(page)
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").click()
    near = view(page)
    assert near[2] == pytest.approx(whole[2] / 1.69)
    # By dragging, which selects no entity.
    before = page.url
    box = page.locator("#drawing > svg").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y - 40, steps=4)
    page.mouse.up()
    moved = view(page)
    assert moved[0] > near[0]
    assert moved[1] > near[1]
    assert page.url == before
    # By the keyboard.
    page.locator("#drawing").focus()
    page.keyboard.press("ArrowLeft")
    assert view(page)[0] < moved[0]
    page.keyboard.press("+")
    assert view(page)[2] < moved[2]
    page.keyboard.press("0")
    assert view(page) == whole
    page.keyboard.press("-")
    assert view(page) == whole
    # By the wheel.
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function("document.querySelector('#drawing > svg').classList.contains('zoomed')")
    page.get_by_role("button", name="Whole drawing").click()
    assert view(page) == whole


def test_entities_of_the_drawing_are_expanded(page: Any, url: str) -> None:
    facts = [[f"leaf {n}", "next", "link 12"] for n in range(40)]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    answered(page, "link 12", "after")
    explained(page)
    before = page.url
    drawn = page.locator("#drawing g.expanded")
    page.locator("#drawing g[role=button][data-entity='link 12']").focus()
    page.keyboard.press("e")
    expect(drawn).to_have_count(8)
    assert page.url == before
    names = [one.get_attribute("data-entity") for one in drawn.all()]
    assert len(set(names)) == 8
    # With the mouse, after the button is pressed; otherwise a click leads on.
    button = page.get_by_role("button", name="Expand on selection")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    page.locator("#drawing g[aria-hidden][data-entity='link 12']").click()
    expect(drawn).to_have_count(16)
    button.click()
    name = drawn.first.get_attribute("data-entity")
    drawn.first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#answers-title")).to_have_text(f"({name}, after, ?)")


def test_labels_are_shown_for_ids(browser: Any, tmp_path: Path) -> None:
    labels = tmp_path / "labels.tsv"
    names = [f"link {n}\tStation {n}" for n in range(12)]
    labels.write_text("\n".join([*names, "next\tis followed by"]))
    service = Service(saved_run(tmp_path / "run", 12), ServeSettings(labels=labels))
    with serving(service) as url, watched(browser, url) as page:
        page.goto(url)
        page.get_by_label("Entity", exact=True).fill("station 4")
        page.get_by_role("option", name="Station 4 link 4").click()
        expect(page.get_by_label("Entity", exact=True)).to_have_value("link 4")
        page.locator("#relation").fill("is fol")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator("#answers-title")).to_have_text("(Station 4, is followed by, ?)")
        expect(page).to_have_title("(Station 4, is followed by, ?) · oneshot")
        explained(page)
        expect(page.locator("#paths li").first).to_contain_text("Station 4")
        expect(page.locator("#facts li").first).to_contain_text("Station")
        expect(page.locator("#drawing g[role=button]").first).to_have_attribute(
            "aria-label", "Station 4"
        )
        assert "link" not in page.locator("#answers tbody").inner_text()


def test_names_of_properties_are_names(browser: Any, tmp_path: Path) -> None:
    """Every object of JavaScript has a property "constructor"."""
    labels = tmp_path / "labels.tsv"
    labels.write_text("link 1\tStation 1")
    service = Service(saved_run(tmp_path / "run", 8), ServeSettings(labels=labels))
    with serving(service) as url, watched(browser, url) as page:
        facts = [["constructor", "next", "__proto__"]]
        assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
        page.goto(f"{url}/#entity=constructor&relation=next")
        expect(page.locator("#answers-title")).to_have_text("(constructor, next, ?)")
        expect(page.locator("#facts li").first).to_contain_text("constructor —next→ __proto__")


def test_it_works_below_a_prefix(browser: Any, tmp_path: Path) -> None:
    service = Service(saved_run(tmp_path / "run", 8), ServeSettings(prefix="/kg"))
    with serving(service) as url, watched(browser, url) as page:
        page.goto(url)
        answered(page, "link 1", "next")
        explained(page)
        page.get_by_role("link", name="API reference").click()
        expect(page.get_by_role("heading", name="GET /v1/changes")).to_be_visible()


def test_everything_fits_a_phone(page: Any, url: str) -> None:
    page.set_viewport_size(PHONE)
    long = "a very long name of an entity that has to be broken " * 3
    facts = [[long, "next", "link 5"], ["link 5", "next", long.replace(" ", "")]]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.goto(f"{url}/#head=link+5&label=next&tail=link+6")
    page.reload()
    expect(page.locator("#checked")).to_contain_text("In the graphyes")
    answered(page, "link 5", "next")
    explained(page)
    page.get_by_role("button", name="More answers").click()
    page.locator("#filters summary").click()
    page.locator("#statistics summary").click()
    expect(page.locator("#statistics dl")).to_contain_text("different heads")
    expect(page.locator("#changes li").first).to_be_visible()
    expect(page.locator("#find")).to_be_visible()
    explained(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_long_names_are_cut(page: Any, url: str) -> None:
    name = "long" * 256
    facts = [[name, "next", "link 5"], ["link 5", "next", name]]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.goto(f"{url}/#entity={name}&relation=next")
    page.reload()
    explained(page)
    page.goto(f"{url}/#entity=link+5&relation=next")
    page.locator("#answers button", has_text=name).click()
    settled(page)
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        for place in ("#answers", "#why-title", "#paths", "#facts", "#changes"):
            shown = page.locator(f"{place} bdi", has_text=name).first
            assert shown.bounding_box()["height"] < 80, place  # three lines
            assert shown.get_attribute("title") == name
        page.locator("#entity").fill("long")
        assert page.get_by_role("option", name=name).bounding_box()["height"] < 100
        page.keyboard.press("Escape")
    short = page.locator("#answers bdi", has_text="link").first
    assert short.get_attribute("title") is None


def test_the_note_of_a_change_on_a_phone(page: Any, url: str) -> None:
    facts = [[f"entity of the graph {n}", "next", "link 1"] for n in range(12)]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.set_viewport_size(PHONE)
    page.reload()
    page.locator("#head").fill("a newcomer with a longer name")
    page.locator("#label").fill("next")
    page.locator("#tail").fill("entity of the graph 1")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Add the fact").click()
    note = page.locator("#added")
    expect(note).to_contain_text("New entity: a newcomer with a longer name.")
    settled_changes = page.locator("#changes-title", has_text="13 facts")
    expect(settled_changes).to_be_attached()
    expect(page.locator("#answers tbody tr").first).to_be_visible()
    expect(note).to_be_in_viewport(ratio=1)
    assert note.bounding_box()["width"] > 0.8 * PHONE["width"]
    # At the end of the page, it covers nothing.
    page.evaluate("scrollTo({ top: document.body.scrollHeight, behavior: 'instant' })")
    expect(note).to_be_in_viewport(ratio=1)
    pager = page.get_by_role("button", name="Next changes").bounding_box()
    assert pager["y"] + pager["height"] <= note.bounding_box()["y"]
    note.get_by_role("button", name="Close this note").click()
    expect(note).to_be_hidden()
    expect(page.get_by_role("button", name="Add the fact")).to_be_focused()


LINES = """element => {
  const range = document.createRange();
  range.selectNodeContents(element);
  return new Set([...range.getClientRects()].map((box) => Math.round(box.bottom))).size;
}"""  # of text


def test_names_have_the_room_of_columns_without_content(browser: Any, tmp_path: Path) -> None:
    name = "America/Punta_Arenas"
    reasoner = Reasoner.load(saved_run(tmp_path / "first"))
    for has_probabilities in (True, False):
        if not has_probabilities:
            reasoner.calibration = None
        run = tmp_path / str(has_probabilities)
        reasoner.save(run)
        with serving(Service(run)) as url, watched(browser, url, viewport=PHONE) as page:
            facts = [["link 5", "next", name], *([name, "next", f"link {n}"] for n in range(4))]
            assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
            page.goto(f"{url}/#entity=link+5&relation=next&top=30")
            cell = page.get_by_role("columnheader", name="Probability")
            expect(page.get_by_role("columnheader", name="Known")).to_be_visible()
            expect(cell).to_be_visible() if has_probabilities else expect(cell).to_be_hidden()
            row = page.locator(f"#answers tr[data-answer='{name}']")
            if not has_probabilities:
                assert row.get_by_role("button").evaluate(LINES) == 1
            # A comparison with the answers before a change stays in one line, too.
            page.get_by_role("button", name=f"Remove link 5, next, {name}").click()
            expect(page.locator("#compared")).to_contain_text("Compared")
            compared = page.locator("#answers td.before").first
            compared.evaluate("cell => { cell.textContent = '#1000 ▲'; }")
            assert compared.evaluate(LINES) == 1
            page.goto(f"{url}/#entity=link+5&relation=next&new=1")
            expect(page.get_by_role("columnheader", name="Known")).to_be_hidden()


# What a touch does is decided when the page has been drawn and stands still.
STILL = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  for (let [same, last] = [0, null]; same < 5; await frame()) {
    const box = document.querySelector("#drawing > svg").getBoundingClientRect();
    const now = [scrollY, box.x, box.y].join();
    same = now === last ? same + 1 : 0;
    last = now;
  }
}"""


class Fingers:
    """Touches of a page at points (x, y), as of a touch screen."""

    def __init__(self, page: Any) -> None:
        self._session = page.context.new_cdp_session(page)

    def _send(self, what: str, *points: tuple[float, float]) -> None:
        touched = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        self._session.send("Input.dispatchTouchEvent", {"type": what, "touchPoints": touched})

    def move(self, *paths: list[tuple[float, float]]) -> None:
        """Put a finger on the first point of each path, follow all paths, and lift them."""
        self._send("touchStart", *(path[0] for path in paths))
        for points in zip(*(path[1:] for path in paths), strict=True):
            self._send("touchMove", *points)
        self._send("touchEnd")


def test_a_touch_screen(browser: Any, url: str) -> None:
    with watched(browser, url, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        page.goto(url)
        # Suggestions, answers and entities of the drawing are chosen by taps.
        page.locator("#entity").tap()
        page.keyboard.type("link_12")
        page.get_by_role("option", name="link 12", exact=True).tap()
        expect(page.locator("#entity")).to_have_value("link 12")
        page.locator("#relation").tap()
        page.get_by_role("option", name="after").tap()
        page.get_by_role("button", name="Ask", exact=True).tap()
        row = page.locator("#answers tbody tr").nth(1)
        row.get_by_role("button").tap()
        expect(page.locator("#why-title")).to_have_text(f"Why {row.get_attribute('data-answer')}?")
        settled(page)
        # A finger on the whole drawing scrolls the page.
        drawing, fingers, asked = page.locator("#drawing > svg"), Fingers(page), page.url
        drawing.evaluate("(svg) => svg.scrollIntoView({ block: 'center' })")
        page.evaluate(STILL)
        box = drawing.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        whole, top = view(page), page.evaluate("scrollY")
        fingers.move([(x, y - 12 * step) for step in range(6)])
        page.wait_for_function(f"scrollY > {top}")
        assert view(page) == whole
        # On an enlarged one, a finger moves it, and two fingers zoom.
        page.get_by_role("button", name="Zoom in").tap()
        page.get_by_role("button", name="Zoom in").tap()
        drawing.evaluate("(svg) => svg.scrollIntoView({ block: 'center' })")
        page.evaluate(STILL)
        near, box = view(page), drawing.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        fingers.move([(x - 10 * step, y - 5 * step) for step in range(6)])
        page.evaluate(STILL)
        moved = view(page)
        assert moved[0] > near[0]
        assert moved[1] > near[1]
        assert moved[2] == near[2]
        spread = [(x - 30 - 6 * step, y) for step in range(6)], [(x + 30, y)] * 6
        fingers.move(*spread)
        page.evaluate(STILL)
        assert view(page)[2] == pytest.approx(moved[2] / 1.5, rel=0.02)
        fingers.move(*(path[::-1] for path in spread))
        page.evaluate(STILL)
        assert view(page)[2] == pytest.approx(moved[2], rel=0.02)
        assert page.url == asked  # no entity was selected by dragging
        page.get_by_role("button", name="Whole drawing").tap()
        other = page.locator("#drawing g.entity[role=button]:not([data-entity='link 12'])").first
        name = other.get_attribute("data-entity")
        other.tap()
        expect(page.locator("#answers-title")).to_have_text(f"({name}, after, ?)")
