"""Tests of the page in a real browser; skipped where there is none."""

import re
import urllib.parse
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import PHONE, answered, ask, explained, settled, watched
from tests.support.services import request, saved_run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed (the extra `browser`)"
)
from oneshot.serve.server import serving  # noqa: E402
from oneshot.serve.service import Service  # noqa: E402
from oneshot.serve.settings import ServeSettings  # noqa: E402


def test_asking_explaining_and_walking(page: Any) -> None:
    expect = sync_api.expect
    # By the keyboard alone, with suggestions.
    entity = page.get_by_label("Entity", exact=True)
    entity.focus()
    page.keyboard.type("LINK_12")
    option = page.get_by_role("option", name="link 12", exact=True)
    expect(option).to_be_visible()
    expect(entity).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    expect(option).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(entity).to_have_value("link 12")
    page.keyboard.press("Tab")
    page.keyboard.type("aft")
    page.keyboard.press("ArrowDown")  # at once: what was suggested before does not count
    expect(page.get_by_role("option", name="after")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Relation", exact=True).first).to_have_value("after")
    page.keyboard.press("Enter")
    # Answers, with the times of the steps.
    expect(page.locator("#answers tbody tr")).to_have_count(10)
    expect(page.locator("#answers-title")).to_have_text("(link 12, after, ?)")
    expect(page.locator("#times")).to_contain_text("sampling")
    expect(page.locator("#times")).to_contain_text("reasoning")
    expect(page.get_by_role("status").first).to_contain_text("10 answers from 15 entities")
    answer = explained(page, 1)
    expect(page.locator("#why-title")).to_have_text(f"Why {answer}?")
    expect(page.locator("#drawing svg")).to_be_visible()
    expect(page.locator("#charts svg")).to_have_count(2)
    expect(page.locator("#charts")).to_contain_text("degree of the sampled entities")
    expect(page.locator("#paths li").first).to_contain_text("link 12")
    expect(page.locator("#times")).to_contain_text("explaining")
    # An entity of the drawing leads on, by the mouse and by the keyboard; and back again.
    before = page.url
    other = page.locator("#drawing g.entity[role=button]:not([data-entity='link 12'])").first
    name = other.get_attribute("data-entity")
    other.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#answers-title")).to_have_text(f"({name}, after, ?)")
    expect(page.locator("#facts-title")).to_contain_text(f"Facts about {name}")
    page.go_back()
    expect(page.locator("#answers-title")).to_have_text("(link 12, after, ?)")
    assert page.url == before
    settled(page)
    page.locator(f"#drawing g.entity[aria-hidden][data-entity='{name}']").first.click()
    expect(page.locator("#answers-title")).to_have_text(f"({name}, after, ?)")


def explanations(page: Any) -> list[str]:
    """The answers whose explanations the page asks for from now on."""
    asked: list[str] = []
    page.on(
        "request",
        lambda one: asked.append(one.post_data_json["answer"]) if "/explain" in one.url else None,
    )
    return asked


def test_explanations_come_on_request(page: Any, url: str) -> None:
    expect = sync_api.expect
    asked = explanations(page)
    page.goto(f"{url}/#entity=link+12&relation=after")
    expect(page.locator("#facts li").first).to_be_visible()
    expect(page.locator("#answers tbody tr")).to_have_count(10)
    page.wait_for_load_state("networkidle")
    assert asked == []
    expect(page.locator("#why")).to_contain_text("Select an answer to see why it was given")
    expect(page.locator("#drawing")).to_be_hidden()
    expect(page.locator("#answers tr[aria-current=true]")).to_have_count(0)
    first = explained(page)
    assert asked == [first]
    expect(page.locator("#why-status")).to_be_hidden()
    # Again: it is there already.
    page.locator("#answers tbody button").first.click()
    # After a change it is explained anew, because it was asked for.
    page.get_by_role("button", name="Remove link 12, next, link 13").click()
    expect(page.locator("#compared")).to_contain_text("Compared with version 0")
    expect(page.locator("#why-title")).to_have_text(f"Why {first}?")
    settled(page)
    assert asked == [first, first]
    # Another question has no explanation again.
    answered(page, "link 5", "after")
    expect(page.locator("#why-title")).to_have_text("Explanation")
    expect(page.locator("#drawing")).to_be_hidden()
    page.wait_for_load_state("networkidle")
    assert asked == [first, first]


def test_an_answer_on_which_the_focus_rests_is_explained(browser: Any, url: str) -> None:
    expect = sync_api.expect
    with watched(browser, url) as page:
        page.clock.install()
        asked = explanations(page)
        page.goto(f"{url}/#entity=link+12&relation=after")
        rows = page.locator("#answers tbody tr")
        expect(rows).to_have_count(10)
        before = page.evaluate("history.length")
        page.clock.pause_at(datetime.now() + timedelta(hours=1))
        page.locator("#answers-title").focus()
        for _ in range(3):  # quickly over two answers
            page.keyboard.press("Tab")
        expect(rows.nth(2).get_by_role("button")).to_be_focused()
        page.clock.run_for(5000)
        page.clock.resume()
        settled(page)
        third = rows.nth(2).get_attribute("data-answer")
        expect(page.locator("#why-title")).to_have_text(f"Why {third}?")
        assert asked == [third]
        assert "why=" in page.url
        assert page.evaluate("history.length") == before  # going back leaves the question
        expect(rows.nth(2).get_by_role("button")).to_be_focused()


def test_an_explanation_nobody_waits_for_is_given_up(page: Any) -> None:
    held: list[Any] = []
    page.route("**/v1/explain", lambda route: held.append(route))  # without a response
    answered(page, "link 1", "after")
    with page.expect_request("**/v1/explain"):
        page.locator("#answers tbody button").first.click()
    sync_api.expect(page.locator("#why-status")).to_have_text("Explaining …")
    with page.expect_event("requestfailed", lambda one: "/v1/explain" in one.url):
        answered(page, "link 5", "after")
    sync_api.expect(page.locator("#why-title")).to_have_text("Explanation")


def test_a_fact_about_a_new_entity_is_answered(page: Any, url: str) -> None:
    expect = sync_api.expect
    answered(page, "link 1", "after")
    explained(page)
    ask(page, "newcomer", "after")
    expect(page.locator("#problem")).to_contain_text("unknown entity 'newcomer'")
    expect(page.locator("#answers-card")).to_be_hidden()  # they answered another question
    for tail in ("link 3", "link 9"):
        page.locator("#head").fill("newcomer")
        page.locator("#label").fill("next")
        page.locator("#tail").fill(tail)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Add the fact").click()
        new = " New entity: newcomer." if tail == "link 3" else ""
        expect(page.locator("#added")).to_have_text(f"Added: newcomer, next, {tail}.{new} Undo ×")
    expect(page.locator("#answers-title")).to_have_text("(newcomer, after, ?)")
    expect(page.locator("#answers tbody tr")).to_have_count(10)
    expect(page.locator("#facts li")).to_have_count(2)
    expect(page.locator("#facts")).to_contain_text("link 9")
    expect(page.locator("#why-title")).to_have_text("Explanation")
    explained(page)
    expect(page.locator("#drawing g[data-entity='newcomer']").first).to_be_visible()
    assert len(request(f"{url}/v1/entities/newcomer").json["facts"]) == 2
    page.get_by_role("button", name="Remove newcomer, next, link 9").click()
    expect(page.locator("#facts li")).to_have_count(1)
    # What was removed by mistake is put back.
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(page.locator("#added")).to_contain_text("Added: newcomer, next, link 9.")
    expect(page.locator("#facts li")).to_have_count(2)


def test_a_failed_explanation_does_not_leave_the_previous_one(page: Any) -> None:
    expect = sync_api.expect
    answered(page, "link 1", "after")
    explained(page)
    page.route("**/v1/explain", lambda route: route.fulfill(status=200, body="{"))
    answered(page, "link 5", "after")
    page.locator("#answers tbody button").first.click()
    expect(page.locator("#why-problem")).to_contain_text("The response is not from the service")
    expect(page.locator("#paths li")).to_have_count(0)
    expect(page.locator("#drawing svg")).to_have_count(0)
    expect(page.locator("#why-status")).to_be_hidden()
    # It can be selected again.
    page.unroute("**/v1/explain")
    explained(page)
    expect(page.locator("#why-problem")).to_be_hidden()


def test_an_error_of_the_form_is_shown_beside_it(page: Any) -> None:
    page.locator("#head").fill("newcomer")
    page.locator("#label").fill("nxt")
    page.locator("#tail").fill("link 1")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Add the fact").click()
    shown = page.locator("#add-card .problem")
    sync_api.expect(shown).to_contain_text("unknown relation 'nxt'")
    sync_api.expect(shown).to_be_in_viewport()


def test_a_name_from_right_to_left_turns_nothing_else(page: Any, url: str) -> None:
    name = "\u05d0\u05d1\u05d2"  # in Hebrew
    facts = [[name, "next", "link 1"], ["link 2", "next", name]]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.goto(f"{url}/#entity=link+2&relation=next")
    page.locator("#answers button", has_text=name).click()
    settled(page)
    isolated = page.evaluate(
        "(name) => [...document.querySelectorAll('#answers-card, #why-title, #paths, #facts')]"
        ".every((part) =>"
        " { const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT); let node;"
        " while ((node = walker.nextNode())) if (node.data.includes(name) &&"
        " node.parentElement.tagName !== 'BDI') return false; return true; })",
        name,
    )
    assert isolated
    assert page.locator("#paths bdi", has_text=name).count() > 0


# The texts that a user sees or hears, and those of fields.
SHOWN = """() => {
  const texts = [document.title, document.body.innerText];
  for (const one of document.querySelectorAll("[title], [aria-label], input, svg title")) {
    texts.push(one.title, one.ariaLabel, one.value, one.textContent);
  }
  return texts.filter((text) => typeof text === "string");
}"""
HIDDEN = re.compile("[\0-\x08\x0e-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def test_hidden_characters_of_names_are_shown(page: Any, url: str) -> None:
    """A name that looks like another one."""
    expect = sync_api.expect
    name = "evil\u202eexe.txt"
    facts = [
        [name, "next", "link 1"],
        ["link 2", "next", name],
        ["\ufeffli\u200b\x85", "next", name],
    ]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.reload()
    answered(page, "link 2", "next")
    page.locator("#answers button", has_text="evil\\u202eexe.txt").click()
    settled(page)
    expect(page).to_have_title("Why evil\\u202eexe.txt? (link 2, next, ?) · oneshot")
    expect(page.locator("#paths li").first).to_contain_text("evil\\u202eexe.txt")
    expect(page.locator("#drawing g[role=button]", has_text="evil")).to_have_attribute(
        "aria-label", "evil\\u202eexe.txt"
    )
    expect(page.locator("#drawing text", has_text="evil\\u202eexe.txt")).to_be_visible()
    expect(page.locator("#changes")).to_contain_text("\\ufeffli\\u200b\\u0085 —next→ evil\\u202e")
    assert not [text for text in page.evaluate(SHOWN) if HIDDEN.search(text)]
    # What is sent has the name itself.
    page.locator("#entity").fill("evil")
    page.get_by_role("option", name="evil").click()
    expect(page.locator("#entity")).to_have_value("evil\\u202eexe.txt")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page).to_have_title("(evil\\u202eexe.txt, next, ?) · oneshot")
    assert f"entity={urllib.parse.quote(name)}&" in page.url
    expect(page.locator("#facts li")).to_have_count(3)
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Remove evil\\u202eexe.txt, next, link 1").click()
    expect(page.locator("#added")).to_have_text("Removed: evil\\u202eexe.txt, next, link 1. Undo ×")
    expect(page.locator("#compared")).to_contain_text("Compared with version 1")
    assert not [text for text in page.evaluate(SHOWN) if HIDDEN.search(text)]
    page.get_by_role("button", name="curl").click()
    assert name in page.get_by_label("Command for a shell").input_value()
    # A name in Persian, and a joiner where no script needs one.
    shown = page.evaluate(
        "async (names) => names.map((await import('/page/dom.js')).visible)",
        ["می\u200cخواهم", "li\u200dnk"],
    )
    assert shown == ["می\u200cخواهم", "li\\u200dnk"]


def test_a_known_fact_has_no_probability(page: Any) -> None:
    ask(page, "link 2", "next")
    known = page.locator("#answers tbody tr", has=page.locator(".known"))
    sync_api.expect(known.first).to_be_visible()
    assert known.locator("meter").count() == 0
    others = page.locator("#answers tbody tr", has_not=page.locator(".known"))
    assert others.locator("meter").count() == others.count()


def test_the_beginning_of_a_name_is_enough(page: Any, url: str) -> None:
    facts = {"facts": [["Bolivia", "next", "link 1"]]}
    assert request(f"{url}/v1/facts", facts).status == 200
    page.get_by_label("Entity", exact=True).fill("boliv")
    page.locator("#relation").fill("aft")
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#answers-title")).to_have_text("(Bolivia, after, ?)")


def test_the_focus_stays_after_a_walk_by_keyboard(page: Any) -> None:
    answered(page, "link 12", "after")
    explained(page)
    page.locator("#drawing g.entity[role=button]:not([data-entity='link 12'])").first.focus()
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#answers-title")).to_be_focused()
    sync_api.expect(page.locator("#why-title")).to_have_text("Explanation")
    sync_api.expect(page.locator("#answers-title")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_can_be_read(page: Any, scheme: Any) -> None:
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme=scheme)
    answered(page, "link 5", "next")
    explained(page)
    sync_api.expect(page.locator("#drawing svg")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator("#drawing svg").bounding_box()["width"] <= PHONE["width"]
    small = page.evaluate(
        "[...document.querySelectorAll('button, input:not([type=checkbox])')]"
        ".filter((e) => e.offsetParent && e.getBoundingClientRect().height < 32).length"
    )
    assert small == 0  # large enough for a finger
    colours = page.evaluate(
        "['color', 'backgroundColor'].map((key) => getComputedStyle("
        "document.querySelector('.card'))[key]).concat(getComputedStyle(document.body).color)"
    )
    ink = [int(part) for part in colours[2].removeprefix("rgb(").removesuffix(")").split(",")]
    paper = [int(part) for part in colours[1].removeprefix("rgb(").removesuffix(")").split(",")]
    assert (sum(ink) > sum(paper)) == (scheme == "dark")
    named = page.evaluate(
        "[...document.querySelectorAll('button, input')].every((e) => "
        "e.textContent.trim() || e.labels?.length || e.ariaLabel)"
    )
    assert named


def test_odd_names_can_be_walked_to(page: Any, url: str) -> None:
    name = "two\nlines <b>&\"'"
    facts = [[name, "next", "link 3"], ["link 2", "next", name]]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    ask(page, "link 2", "next")
    page.locator("#answers button", has_text="two").click()
    sync_api.expect(page.locator("#why-title")).to_contain_text("Why two")
    settled(page)
    page.locator("#drawing g.entity[role=button]", has_text="two").first.focus()
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#facts-title")).to_contain_text("lines <b>&\"' (2)")


def test_a_name_with_a_line_break_is_chosen(page: Any, url: str) -> None:
    """A text field has no line breaks."""
    expect = sync_api.expect
    facts = [["two\nlines", "next", "link 3"]]
    assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
    page.locator("#entity").fill("two")
    page.get_by_role("option", name="two\\u000alines").click()
    page.locator("#relation").fill("next")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#answers-title")).to_have_text("(two\\u000alines, next, ?)")
    expect(page.locator("#answers tbody tr").first).to_be_visible()
    # It remains the question after a change, and the head of a new fact.
    page.locator("#label").fill("after")
    page.locator("#tail").fill("two")
    page.get_by_role("option", name="two\\u000alines").click()
    page.get_by_role("button", name="Add the fact").click()
    expect(page.locator("#added")).to_contain_text(
        "Added: two\\u000alines, after, two\\u000alines."
    )
    expect(page.locator("#facts-title")).to_have_text("Facts about two\\u000alines (2)")
    expect(page.locator("#compared")).to_contain_text("Compared with version 1")


def test_a_failed_question_leaves_no_answers(page: Any) -> None:
    expect = sync_api.expect
    answered(page, "link 1", "after")
    explained(page)
    page.route("**/v1/**", lambda route: route.fulfill(status=200, body="{"))  # all of the service
    page.locator("#relation").fill("before")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#problem")).to_contain_text("The response is not from the service")
    expect(page.locator("#problem")).to_be_in_viewport()
    expect(page.locator("#answers-card")).to_be_hidden()
    expect(page.locator("#why")).to_be_hidden()
    # A change fails beside the button that was pressed.
    page.locator("#facts li button[aria-label]").first.click()
    expect(page.locator("#added")).to_contain_text("The response is not from the service")
    # Where the selected entity was, there is nothing any more.
    page.unroute("**/v1/**")
    answered(page, "link 1", "after")
    explained(page)
    page.route("**/v1/predict", lambda route: route.fulfill(status=200, body="{"))
    page.locator("#drawing g.entity[role=button]:not([data-entity='link 1'])").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#problem")).to_contain_text("The response is not from the service")
    expect(page.locator("#problem")).to_be_focused()


def test_nothing_to_change_is_offered_where_nothing_can_be(browser: Any, tmp_path: Path) -> None:
    service = Service(saved_run(tmp_path / "run", 8), ServeSettings(read_only=True))
    with serving(service) as url:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{url}/#entity=link+1&relation=next")
        sync_api.expect(page.locator("#facts li").first).to_be_visible()
        sync_api.expect(page.get_by_role("button", name="Check the fact")).to_be_visible()
        sync_api.expect(page.get_by_role("button", name="Add the fact")).to_be_hidden()
        sync_api.expect(page.get_by_role("button", name="Remove")).to_have_count(0)
        context.close()


def test_a_token_is_asked_for(browser: Any, tmp_path: Path) -> None:
    settings = ServeSettings(token="s3cret")
    with serving(Service(saved_run(tmp_path / "run", 8), settings)) as url:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{url}/#entity=link+1&relation=next")
        # No header can carry this one; the page would ask for no other.
        page.get_by_label("Access token").fill("s3cret…")
        page.get_by_role("button", name="Use token").click()
        sync_api.expect(page.get_by_label("Access token")).to_be_visible()
        page.get_by_label("Access token").fill("s3cret")
        page.get_by_role("button", name="Use token").click()
        sync_api.expect(page.locator("#answers-title")).to_have_text("(link 1, next, ?)")
        context.close()


def test_the_reference_can_be_read(page: Any, url: str) -> None:
    page.goto(f"{url}/reference")
    sync_api.expect(
        page.get_by_role("heading", name="POST /v1/predict", exact=True)
    ).to_be_visible()
