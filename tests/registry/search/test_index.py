"""Ranking operations by requests."""

import random
import string
from collections.abc import Sequence
from itertools import count

import pytest

from opwire import OperationRegistry, OperationSpec, OperationType
from opwire.registry.search import SearchIndex


def spec(id: str, title: str = "", description: str = "", *, writes: bool = False) -> OperationSpec:
    namespace, _, name = id.partition(".")
    type = OperationType.MUTATION if writes else OperationType.QUERY
    return OperationSpec(namespace=namespace, name=name, title=title, description=description, type=type)


SPECS = (
    spec("code.pulls_list", "List pull requests"),
    spec("code.pulls_merge", "Merge a pull request", writes=True),
    spec("code.repos_get", "Get a repository", "Details of one repository."),
    spec("code.repos_delete", "Delete a repository", writes=True),
    spec("code.branches_list", "List branches", "All branches of a repository."),
    spec("code.branch_get", "Get a branch", "One branch of a repository."),
    spec("kube.createCoreV1NamespacedConfigMap", description="create a ConfigMap", writes=True),
    spec("kube.listCoreV1PersistentVolumeClaim", description="list objects of kind PersistentVolumeClaim"),
    spec("kube.listCoreV1PersistentVolume", description="list objects of kind PersistentVolume"),
    spec("pay.PostInvoicesInvoiceFinalize", description="<p>Finalize a draft invoice.</p>", writes=True),
    spec("pay.GetInvoices", description="<p>You can list all invoices, or list the invoices of a customer.</p>"),
    spec("pay.PostCheckoutSessions", description="Creates a Session object.", writes=True),
)


@pytest.fixture(scope="module")
def index() -> SearchIndex:
    return SearchIndex(SPECS)


def ids(found: Sequence[OperationSpec]) -> list[str]:
    return [each.id for each in found]


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("merge PR 17", "code.pulls_merge"),
        ("which PRs are there?", "code.pulls_list"),
        ("remove a repo", "code.repos_delete"),
        ("get rid of a repository", "code.repos_delete"),
        ("finalizing drafts", "pay.PostInvoicesInvoiceFinalize"),
        ("all invioces of a customer", "pay.GetInvoices"),
        ("configmap", "kube.createCoreV1NamespacedConfigMap"),
        ("create confgmap", "kube.createCoreV1NamespacedConfigMap"),
        ("PVCs", "kube.listCoreV1PersistentVolumeClaim"),
        ("branches", "code.branches_list"),
        ("show one branch", "code.branch_get"),
        ("check out sessions", "pay.PostCheckoutSessions"),
        ("finali", "pay.PostInvoicesInvoiceFinalize"),
        ("kube persistent volume claims", "kube.listCoreV1PersistentVolumeClaim"),
    ],
)
def test_a_request_in_plain_words_finds_its_operation(index: SearchIndex, text: str, best: str) -> None:
    """A request finds its operation by other forms, synonyms, abbreviations and misspellings of its words;
    plurals prefer lists, and verbs that write prefer mutations."""
    assert ids(index.find(text, 3))[:1] == [best]


def test_an_abbreviation_stands_for_all_of_its_words(index: SearchIndex) -> None:
    assert ids(index.find("pvc", 5)) == ["kube.listCoreV1PersistentVolumeClaim"]


def test_a_number_counts_if_it_is_part_of_a_name() -> None:
    index = SearchIndex([spec(f"api.resource_{number}", f"Return resource {number}") for number in range(50)])
    assert ids(index.find("resource 42", 1)) == ["api.resource_42"]
    assert len(index.find("resource 99", 50)) == 50


def test_nothing_similar_is_found_by_nothing_and_everything_by_an_empty_request(index: SearchIndex) -> None:
    assert index.find("xylophone qwertz 12345", 5) == ()
    assert index.find("the of a", 5) == ()
    assert index.find(" ", 3) == SPECS[:3]
    assert index.find("list", 0) == ()
    assert index.find("list", -1) == ()


def test_only_visible_operations_are_found(index: SearchIndex) -> None:
    """A search on behalf of a caller finds only what the caller may see."""
    found = index.find("repository", 10, visible=lambda spec: spec.type is OperationType.MUTATION)
    assert ids(found) == ["code.repos_delete"]
    assert ids(index.find("", 1, visible=lambda spec: spec.namespace == "pay")) == ["pay.PostInvoicesInvoiceFinalize"]


def test_the_index_of_a_registry_follows_its_changes() -> None:
    registry = OperationRegistry()
    registry.register(SPECS[0])
    assert registry.search("invoices") == ()
    registry.register(SPECS[10])
    assert ids(registry.search("invoices")) == ["pay.GetInvoices"]
    registry.register(spec("pay.GetInvoices", "Pull the plug"), replace=True)
    assert ids(registry.search("plug")) == ["pay.GetInvoices"]
    assert registry.search("customer") == ()
    registry.unregister("pay.GetInvoices")
    assert registry.search("plug") == ()
    assert registry.search("plgu") == ()


def vectors(texts: Sequence[str]) -> list[list[float]]:
    """Embed texts by two topics: code and money."""
    return [[float("code" in text or "ship" in text), float("pay" in text or "owe" in text), 0.1] for text in texts]


def test_an_embedding_function_finds_what_words_do_not() -> None:
    registry = OperationRegistry()
    calls: list[int] = []
    for each in SPECS:
        registry.register(each)
    assert registry.search("who owes us?") == ()

    def embed(texts: Sequence[str]) -> list[list[float]]:
        calls.append(len(texts))
        return vectors(texts)

    registry.use_embeddings(embed)
    found = registry.search("who owes us?", limit=3)
    assert {each.namespace for each in found} == {"pay"}
    registry.register(spec("pay.late"))
    assert ids(registry.search("branches", limit=1)) == ["code.branches_list"]
    assert calls == [len(SPECS), 1, 1, 1]
    registry.use_embeddings(None)
    assert registry.search("who owes us?") == ()


@pytest.mark.parametrize(
    "embed",
    [
        lambda texts: 1 / 0,
        lambda texts: [],
        lambda texts: [[float("nan")] for _ in texts],
        lambda texts: [[0.0, 0.0] for _ in texts],
    ],
)
def test_a_failing_embedding_function_is_logged_and_words_remain(
    embed: object, caplog: pytest.LogCaptureFixture
) -> None:
    """A user's embedding function adds its ranking; if it fails, words alone rank."""
    index = SearchIndex(SPECS, embed=embed)  # pyright: ignore[reportArgumentType]
    assert ids(index.find("finalize", 1)) == ["pay.PostInvoicesInvoiceFinalize"]
    assert "the embedding function failed" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "list " * 100_000,
        "x" * 1_000_000,
        " ".join("".join(random.Random(at).choices(string.ascii_lowercase, k=38)) for at in range(2_000)),
        "\x00\ud800 \u202e",
        "’s" * 10_000,
    ],
)
def test_a_hostile_request_is_answered(index: SearchIndex, text: str) -> None:
    assert len(index.find(text, 5)) <= 5


def test_long_texts_of_an_operation_are_cut() -> None:
    """A search takes bounded work for any request and any texts of operations."""
    index = SearchIndex(
        [spec("a.b", "Title " * 100_000, "word " * 1_000_000 + "last"), spec("a.c", "", "<" * 1_000_000)]
    )
    assert ids(index.find("word", 5)) == ["a.b"]
    assert index.find("last", 5) == ()


def test_long_tags_of_an_operation_are_cut() -> None:
    # 300 operations with a tag of 40,000 words took 20 s and 1.6 GB.
    index = SearchIndex([OperationSpec(namespace="a", name="b", tags=("word " * 40_000 + "last", "parcel"))])
    assert ids(index.find("word", 5)) == ids(index.find("parcel", 5)) == ["a.b"]
    assert index.find("last", 5) == ()


def test_a_namespace_with_too_many_words_is_indexed_briefly_and_others_are_not() -> None:
    number = count()

    def made_up(words: int) -> str:
        return " ".join(f"w{next(number):x}x" for _ in range(words))

    index = SearchIndex(spec(f"evil.weigh_{at}", made_up(10), made_up(100)) for at in range(1_000))
    good = spec("good.post", "Weigh a letter", "the " * 30 + "stamps")
    index.put(good)
    assert ids(index.find("stamps", 5)) == ["good.post"]
    assert len(index.find("weigh", 2_000)) == 1_001
    known = sum(bool(index.find(f"w{at * 110 + 109:x}x", 1)) for at in range(1_000))  # by the last word of each
    assert 400 < known < 900
    for at in range(1_000):
        index.drop(f"evil.weigh_{at}")
    index.put(spec("evil.post", good.title, good.description))
    assert set(ids(index.find("stamps", 5))) == {"evil.post", "good.post"}


def test_an_operation_that_removes_something_is_not_the_first_for_a_request_that_does_not() -> None:
    index = SearchIndex(
        [
            OperationSpec(
                namespace="hooks", name="endpoint.delete", type="mutation", title="Delete a webhook endpoint"
            ),
            OperationSpec(
                namespace="hooks", name="endpoints.post", type="mutation", title="A new webhook endpoint of yours"
            ),
        ]
    )
    assert [spec.name for spec in index.find("webhook endpoint", 1)] == ["endpoints.post"]
    assert [spec.name for spec in index.find("get rid of a webhook endpoint", 1)] == ["endpoint.delete"]


def test_two_words_may_be_one_and_the_opposite_of_a_verb() -> None:
    names = ("users/follow", "users/unfollow", "payouts/create", "payments/create")
    index = SearchIndex(OperationSpec(namespace="a", name=name, type="mutation") for name in names)
    assert index.find("stop following a user", 1)[0].name == "users/unfollow"
    assert index.find("pay out money", 1)[0].name == "payouts/create"


def test_the_shorter_of_two_names_is_the_first_however_many_parts_it_has() -> None:
    kinds = ("AdmissionPolicy", "AdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
    index = SearchIndex(
        OperationSpec(namespace="k", name=f"deleteRegistrationV1{kind}", type="mutation", title=f"delete a {kind}")
        for kind in reversed(kinds)
    )
    assert index.find("delete a mutating admission policy", 1)[0].name == "deleteRegistrationV1MutatingAdmissionPolicy"
    assert index.find("delete an admissionpolicy", 1)[0].name == "deleteRegistrationV1AdmissionPolicy"
    assert index.find("take an admission policy away", 1)[0].name == "deleteRegistrationV1AdmissionPolicy"


def test_an_imperative_asks_for_a_change() -> None:
    index = SearchIndex(
        [
            spec("hub.gists_starred", "List starred gists"),
            spec("hub.gists_star", "Star a gist of another user", writes=True),
        ]
    )
    assert ids(index.find("star the gist", 1)) == ["hub.gists_star"]
    assert ids(index.find("starred gists", 1)) == ["hub.gists_starred"]


def test_the_words_of_a_phrase_may_be_apart() -> None:
    index = SearchIndex([spec("shop.users_login", "Login", writes=True), spec("shop.logs_in", "Logs in a user folder")])
    assert ids(index.find("log a new user in", 1)) == ["shop.users_login"]


def test_a_namespace_that_the_request_names_is_preferred() -> None:
    names = ("docker.volumes_list", "kubernetes.volumes_list")
    index = SearchIndex(spec(name, "List volumes") for name in names)
    assert ids(index.find("docker volumes", 1)) == ["docker.volumes_list"]
    assert ids(index.find("k8s volumes", 1)) == ["kubernetes.volumes_list"]


def test_a_state_that_has_no_operation_is_changed_by_an_update() -> None:
    index = SearchIndex(
        [
            spec("code.milestones_create", "Create a milestone", writes=True),
            spec("code.milestones_update", "Update a milestone", writes=True),
        ]
    )
    assert ids(index.find("close a milestone", 1)) == ["code.milestones_update"]
