"""Splitting and stemming words."""

import time

import pytest

from opwire.registry.search.vocabulary import load_vocabulary, stems_of
from opwire.registry.search.words import misspellings, plain_text, split_words, stem_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("issues/list-labels-for-repo", ["issues", "list", "labels", "for", "repo"]),
        ("readCoreV1NamespacedPodLog", ["read", "core", "namespaced", "pod", "log"]),
        ("a ConfigMap", ["a", "config", "map", "configmap"]),
        ("get_HTTPServer", ["get", "http", "server", "httpserver"]),
        ("Größe der Straße", ["größe", "der", "straße"]),
        ("x" * 41, []),
    ],
)
def test_identifiers_are_split(text: str, expected: list[str]) -> None:
    assert list(split_words(text)) == expected


@pytest.mark.parametrize(
    "forms",
    [
        "finalize finalizes finalized finalizing finalization",
        "cancel cancels cancelled cancelling cancellation",
        "delete deletes deleted deleting deletion",
        "verify verifies verified verifying verification",
        "subscribe subscribes subscribed subscription subscriptions",
        "repository repositories",
        "approve approval approved",
        "deploy deployment deployments",
        "member members membership",
        "branch branches",
    ],
)
def test_forms_of_a_word_have_one_stem(forms: str) -> None:
    assert len({stem_of(form) for form in forms.split()}) == 1


def test_different_words_keep_different_stems() -> None:
    different = "status state payment pay comment commit run rule user use key status organization organ".split()
    assert len({stem_of(word) for word in different}) == len(set(different))


def test_one_wrong_letter_is_a_misspelling() -> None:
    for right, wrong in [
        ("invoices", "invioces"),
        ("repository", "repositry"),
        ("issues", "isues"),
        ("tune", "tunee"),
        ("invoice", "nivoice"),
    ]:
        assert right in set(misspellings(wrong))
    assert "slice" not in set(misspellings("alice"))


def test_tags_and_addresses_are_not_words() -> None:
    text = plain_text('<p>See <a href="https://a.example/b">plans</a>, [docs](/docs/x) or https://b.example/c</p>')
    assert list(split_words(text)) == ["see", "plans", "docs", "or"]


def test_markup_that_never_ends_is_read_in_linear_time() -> None:
    began = time.process_time()
    for hostile in ("<" * 100_000, "](" * 50_000, "https://" * 12_500, "aA" * 50_000):
        list(split_words(plain_text(hostile)))
    assert time.process_time() - began < 20  # quadratic time would be minutes


def test_the_words_of_the_vocabulary_are_reachable_by_any_form() -> None:
    vocabulary = load_vocabulary()
    assert stem_of("remove") in vocabulary.synonyms[stem_of("deleting")]
    assert stems_of(["pull", "requests"]) in vocabulary.meanings[stems_of(["prs"])]
    assert stem_of("created") in vocabulary.changing_verbs
    assert all(word not in synonyms for word, synonyms in vocabulary.synonyms.items())
