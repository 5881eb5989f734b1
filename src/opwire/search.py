"""Rank operations by a request in plain words, without a model.

An inverted index over ids, titles and descriptions finds candidates, as in BM25. The best are scored again: by how
much of their name or title the request covers, and by whether request and operation both read or both write. Words are
English; those of other languages are compared as they are.

No I/O, no clock, no tasks, except for the user's embedding function. The work is bounded, whatever a request and the
texts of an operation contain.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from heapq import nlargest
from itertools import islice
from math import isfinite, log, sqrt
from operator import mul
from typing import NamedTuple

from opwire.operation import OperationSpec, OperationType

logger = logging.getLogger("opwire.search")

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Returns a vector for each text, such as the `encode` of a sentence transformer."""

_MAX_REQUEST = 400  # characters
_MAX_CONCEPTS = 24  # of a request
_MAX_CORRECTED = 4  # unknown words of a request: each takes some 600 look-ups
_MIN_CORRECTED = 4  # letters
_MAX_NAME = 200  # characters that are indexed
_MAX_TITLE = 240
_MAX_DESCRIPTION = 2_000
_MAX_TAGS = 20
_TYPICAL_LENGTH = 40  # words of a description
_SHORTLIST = 120  # candidates that are scored twice
_MAX_COMPLETIONS = 3  # words that start with an unknown one
_BATCH = 100  # texts passed to `Embed` at once
_RANK_OFFSET = 10  # reciprocal rank fusion: the smaller, the more the first ranks count

_SENTENCE_END = re.compile(r"[.!?:](?:\s|$)|\n\s*\n")


class SearchWeights(NamedTuple):
    """How much each feature counts. `benchmarks/search.py` cross-validates them; the results are flat around these."""

    description: float = 0.25  # a word of the description; one of the name or of the title counts 1
    saturation: float = 0.8  # the more, the more a word counts that is in name, title and description
    namespace: float = 0.5
    synonym: float = 0.6
    abbreviation: float = 0.9
    misspelling: float = 0.7
    completion: float = 0.4
    title: float = 0.8  # the share of a name or title that the request covers
    form: float = 0.1  # the same form of a word: a list of branches rather than one branch
    intent: float = 0.15  # subtracted if one reads and the other writes
    removal: float = 0.2  # subtracted if the operation removes something, and the request does not


class _Entry:
    """An operation of the index. `terms` are its stems, each with its weight; `heads` the stems of name and title."""

    __slots__ = ("forms", "heads", "reads", "removes", "spec", "terms", "vector")

    def __init__(self, spec: OperationSpec, weights: SearchWeights) -> None:
        description = plain_text(spec.description[:_MAX_DESCRIPTION])
        title = plain_text(spec.title[:_MAX_TITLE])
        if not title:
            end = _SENTENCE_END.search(description)
            title = description[: end.start() if end else None][:_MAX_TITLE]
        fields = [set(words(spec.name[:_MAX_NAME])), set(words(title)) - STOP_WORDS]
        counts: dict[str, float] = dict.fromkeys(map(stem, words(spec.namespace[:_MAX_NAME])), weights.namespace)
        for field in fields:
            for each in set(map(stem, field)):
                counts[each] = counts.get(each, 0) + 1
        parts = [set(words(spec.name[:_MAX_NAME], joined=False)), set(words(title, joined=False)) - STOP_WORDS]
        self.heads = [frozenset(map(stem, field)) for field in parts if field]
        body = [stem(word) for word in words(" ".join((description, *spec.tags[:_MAX_TAGS]))) if word not in STOP_WORDS]
        weight = 2 * weights.description / (1 + len(body) / _TYPICAL_LENGTH)
        for each in body:
            counts[each] = counts.get(each, 0) + weight
        self.spec = spec
        self.forms = frozenset[str]().union(*fields)
        self.reads = spec.type is not OperationType.MUTATION
        self.removes = not self.reads and not thesaurus().removing.isdisjoint(frozenset[str]().union(*self.heads))
        self.terms = {each: count / (count + weights.saturation) for each, count in counts.items()}
        self.vector: tuple[float, ...] | None = None


class _Concept(NamedTuple):
    """A word of a request. An alternative is a weight and the stems that an operation has to contain, all of them."""

    forms: frozenset[str]
    alternatives: dict[tuple[str, ...], float]


class SearchIndex:
    """An index of operations.

        index = SearchIndex(registry.list())
        index.find("who starred this repository?", 5)

    With `embed`, the ranking by words and the ranking by the similarity of the vectors are merged.
    """

    def __init__(
        self, specs: Iterable[OperationSpec] = (), *, weights: SearchWeights | None = None, embed: Embed | None = None
    ) -> None:
        self.embed = embed
        self._weights = weights or SearchWeights()
        self._entries: dict[str, _Entry] = {}
        self._postings: dict[str, dict[str, float]] = {}
        self._forms: dict[str, int] = {}  # words of names and titles, and the number of operations that contain them
        for spec in specs:
            self.put(spec)

    def put(self, spec: OperationSpec) -> None:
        """Add an operation, or replace the one with its id."""
        self.drop(spec.id)
        entry = self._entries[spec.id] = _Entry(spec, self._weights)
        for term, weight in entry.terms.items():
            self._postings.setdefault(term, {})[spec.id] = weight
        for each in entry.forms:
            self._forms[each] = self._forms.get(each, 0) + 1

    def drop(self, operation_id: str) -> None:
        """Remove an operation, if it is known."""
        entry = self._entries.pop(operation_id, None)
        if entry is None:
            return
        for term in entry.terms:
            del self._postings[term][operation_id]
            if not self._postings[term]:
                del self._postings[term]
        for each in entry.forms:
            self._forms[each] -= 1
            if not self._forms[each]:
                del self._forms[each]

    def find(
        self, text: str, limit: int, *, visible: Callable[[OperationSpec], bool] | None = None
    ) -> tuple[OperationSpec, ...]:
        """Return the specs that match a request, best first; an empty request matches all."""
        text = text[:_MAX_REQUEST]
        entries = self._entries

        def is_visible(id: str) -> bool:
            return visible is None or visible(entries[id].spec)

        if not text.strip():
            return tuple(entries[id].spec for id in islice(filter(is_visible, entries), max(limit, 0)))
        ranked = self._ranked_by_words(text, is_visible, max(limit, _SHORTLIST))
        if self.embed is not None and (near := self._ranked_by_vectors(self.embed, text, is_visible)):
            fused: dict[str, float] = {}
            for ranking in (ranked, near):
                for rank, id in enumerate(ranking, _RANK_OFFSET):
                    fused[id] = fused.get(id, 0) + 1 / rank
            ranked = sorted(fused, key=fused.__getitem__, reverse=True)
        return tuple(entries[id].spec for id in ranked[: max(limit, 0)])

    # --- by words ---------------------------------------------------------------------------------------------------

    def _ranked_by_words(self, text: str, is_visible: Callable[[str], bool], most: int) -> list[str]:
        concepts = self._concepts(text)
        scores: dict[str, float] = {}
        for concept in concepts:
            best: dict[str, float] = {}
            for terms, weight in concept.alternatives.items():
                postings = sorted((self._postings[term] for term in terms), key=len)
                for id, impact in postings[0].items():
                    least = impact if len(postings) == 1 else min(each.get(id, 0) for each in postings)
                    if weight * least > best.get(id, 0):
                        best[id] = weight * least
            rarity = self._rarity(len(best))
            for id, match in best.items():
                scores[id] = scores.get(id, 0) + rarity * match
        shortlist = islice(filter(is_visible, sorted(scores, key=scores.__getitem__, reverse=True)), most)
        requested: dict[str, float] = {}
        for concept in concepts:
            for terms, weight in concept.alternatives.items():
                for term in terms:
                    requested[term] = max(requested.get(term, 0), weight)
        forms = frozenset[str]().union(*(concept.forms for concept in concepts))
        first = next((word for word in words(text) if word not in STOP_WORDS), "")
        reads = stem(first) not in thesaurus().writing
        keeps = thesaurus().wanting_removal.isdisjoint(map(stem, words(text)))
        rarities: dict[str, float] = {}
        final = {
            id: scores[id]
            * (1 + self._weights.title * self._covered(self._entries[id], requested, rarities))
            * (1 + self._weights.form * len(forms & self._entries[id].forms) / max(len(forms), 1))
            * (1 - self._weights.intent * (self._entries[id].reads is not reads))
            * (1 - self._weights.removal * (keeps and self._entries[id].removes))
            for id in shortlist
        }
        return sorted(final, key=final.__getitem__, reverse=True)

    def _concepts(self, text: str) -> list[_Concept]:
        given = list(words(text.replace("'s ", " ").replace("’s ", " ")))
        ignored = STOP_WORDS if not STOP_WORDS.issuperset(given) else frozenset[str]()
        concepts: list[_Concept] = []
        at = guesses = 0
        while at < len(given) and len(concepts) < _MAX_CONCEPTS:
            word = given[at]
            if (pair := self._pair(given[at : at + 2])) is not None:
                concepts.append(pair)
                at += 2
                continue
            at += 1
            alternatives = self._alternatives(word, is_ignored=word in ignored)
            if not alternatives and word not in ignored and guesses < _MAX_CORRECTED:
                guesses += 1
                alternatives = self._guesses(word)
            if alternatives:
                concepts.append(_Concept(frozenset([word]), alternatives))
        return concepts

    def _pair(self, pair: Sequence[str]) -> _Concept | None:
        """Return what two words mean together: `turn on` is `enable`, and `check out` may be `checkout`."""
        if len(pair) < 2:
            return None
        terms, joined = tuple(map(stem, pair)), "".join(pair)
        if pair[0] in ("undo", "stop") and (opposite := f"un{terms[1]}") in self._postings:
            return _Concept(frozenset[str](), {(opposite,): 1.0})
        if (phrase := thesaurus().expansions.get(terms)) is not None:
            return _Concept(frozenset[str](), self._known(dict.fromkeys(phrase, self._weights.abbreviation)))
        if stem(joined) in self._postings and (STOP_WORDS.isdisjoint(pair) or pair[1] in PARTICLES):
            return _Concept(frozenset([joined]), self._known(dict.fromkeys([(stem(joined),), terms], 1.0)))
        return None

    def _alternatives(self, word: str, *, is_ignored: bool = False) -> dict[tuple[str, ...], float]:
        """Return what a word stands for: itself, what it abbreviates, its synonyms."""
        term = stem(word)
        found: dict[tuple[str, ...], float] = {}
        if not is_ignored:  # a number is an argument, unless it is part of a name
            found[term,] = 1.0 if not word.isdecimal() else self._weights.synonym if word in self._forms else 0.0
        expansions = thesaurus().expansions
        for each in expansions.get((term,)) or expansions.get((word.removesuffix("s"),), ()):
            found.setdefault(each, self._weights.abbreviation)
        for each in thesaurus().synonyms.get(term, ()):
            found.setdefault((each,), self._weights.synonym)
        return self._known(found)

    def _known(self, alternatives: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
        known = self._postings.__contains__
        return {terms: weight for terms, weight in alternatives.items() if weight and all(map(known, terms))}

    def _guesses(self, word: str) -> dict[tuple[str, ...], float]:
        """Return what an unknown word may be: two words, a misspelling, or the beginning of a word."""
        if len(word) < _MIN_CORRECTED or not word.isalpha():
            return {}
        for cut in range(3, len(word) - 2):
            if word[:cut] in self._forms and word[cut:] in self._forms:
                return {(stem(word[:cut]), stem(word[cut:])): 1.0}
        found: dict[tuple[str, ...], float] = {}
        for each in {each for each in misspellings(word) if each in self._forms}:
            for terms, weight in self._alternatives(each).items():
                found[terms] = max(found.get(terms, 0), weight * self._weights.misspelling)
        if not found:
            completions = sorted((each for each in self._forms if each.startswith(word)), key=len)
            found = {(stem(each),): self._weights.completion for each in completions[:_MAX_COMPLETIONS]}
        return found

    def _rarity(self, count: int) -> float:
        return log(1 + (len(self._entries) - count + 0.5) / (count + 0.5))

    def _covered(self, entry: _Entry, requested: dict[str, float], rarities: dict[str, float]) -> float:
        """Return the share of the name or of the title that the request covers, whichever is more."""
        most = 0.0
        for head in entry.heads:
            whole = covered = 0.0
            for term in head:
                if term not in rarities:
                    rarities[term] = self._rarity(len(self._postings[term]))
                whole += rarities[term]
                covered += rarities[term] * requested.get(term, 0)
            most = max(most, covered / whole)
        return most

    # --- by vectors -------------------------------------------------------------------------------------------------

    def _ranked_by_vectors(self, embed: Embed, text: str, is_visible: Callable[[str], bool]) -> list[str]:
        """Return the ids with the most similar vectors; an embedding function that fails is logged and left out."""
        missing = [entry for entry in self._entries.values() if entry.vector is None]
        try:
            for batch in (missing[at : at + _BATCH] for at in range(0, len(missing), _BATCH)):
                specs = [entry.spec for entry in batch]
                texts = [
                    f"{spec.id}\n{spec.title[:_MAX_TITLE]}\n{plain_text(spec.description[:_MAX_DESCRIPTION])}"
                    for spec in specs
                ]
                for entry, vector in zip(batch, _vectors(embed, texts), strict=True):
                    entry.vector = vector
            (wanted,) = _vectors(embed, [text])
            near = {
                id: sum(map(mul, wanted, entry.vector or ())) for id, entry in self._entries.items() if is_visible(id)
            }
        except Exception:
            logger.exception("the embedding function failed: operations are ranked by their words only")
            return []
        return nlargest(_SHORTLIST, near, key=near.__getitem__)


def _vectors(embed: Embed, texts: Sequence[str]) -> Iterator[tuple[float, ...]]:
    for vector in embed(texts):
        numbers = tuple(map(float, vector))
        length = sqrt(sum(map(mul, numbers, numbers)))
        if not isfinite(length) or not length:
            raise ValueError("an embedding is a vector of finite numbers, and not zero")
        yield tuple(number / length for number in numbers)


# --- words: splitting, stemming, synonyms, abbreviations, misspellings ------------------------------------------------

_MAX_WORD = 40  # characters; longer ones are hashes and encoded data

_MARKUP = re.compile(r"<[^<>]{0,300}>|\]\([^()\s]{0,400}\)|https?://[^\s)\"'<>]{0,400}")
_WORD = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^A-Z]+|[A-Z]+")  # HTTPServer: HTTP, Server
_VERSION = re.compile(r"v\d{1,3}(?:(?:alpha|beta|rc)\d{0,3})?")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

# Words that say nothing about an operation.
STOP_WORDS = frozenset(
    """a about actually all already also am an and any anyone anything are as at away be because been before being but
    by can cannot could currently did do does doing done each either else ever every everyone everything exactly
    exist existing few for from further given go goes going gone had has have having help her here him his how i if
    in into is it its itself just kindly let like lot made many may me might more most much must my need needed
    needs no not now of off on once one only onto or other our ours out over own per please quite really same
    several shall she should since so some somebody someone something still such take than that the their them then
    there these they thing things this those through till to too under until up upon us use used using very via want
    wanted was way we well were what when where whether which while who whom whose why will with within without
    would yet you your
    """.split()
)

_IRREGULAR_FORMS = """
    aliases:alias always:always analyses:analysis bought:buy built:build children:child chosen:choose data:data
    found:find frozen:freeze got:get held:hold hidden:hide indices:index kept:keep left:leave lost:lose made:make
    matrices:matrix media:media men:man news:news paid:pay people:person ran:run running:run sent:send series:series
    shown:show sold:sell spent:spend statuses:status taken:take tied:tie told:tell vertices:vertex went:go won:win
    written:write wrote:write
"""
_IRREGULAR = {form: word for form, _, word in (pair.partition(":") for pair in _IRREGULAR_FORMS.split())}

# Suffix, replacement, and the least number of letters before it. The first that fits is replaced.
_SUFFIX_RULES = """
    ification:ify:2 ization:ize:2 isation:ize:2 ription:ribe:2 ation::3 ating::3 ated::3 ator::3 ate::3 tion:t:3
    sion:s:3 ment::4 ship::4 ied:y:3 ing::3 ed::3 val:v:4 wal:w:3 ise:ize:4 ily:y:3 ly::4
"""
_SUFFIXES = [(suffix, new, int(least)) for suffix, new, least in (rule.split(":") for rule in _SUFFIX_RULES.split())]

# Groups of words that stand for each other.
_SYNONYMS = """
create add new make register open; delete remove destroy erase drop clear discard wipe purge;
update change edit modify set alter adjust correct fix configure; replace overwrite swap; list show display browse;
get retrieve fetch read view see show describe inspect detail; find search look locate filter;
start begin launch run trigger execute exec invoke; stop halt terminate kill end; cancel abort stop; pause suspend;
resume continue unpause; restart reboot; enable activate; disable deactivate; send deliver; upload attach import;
download export save; copy duplicate clone; move transfer; approve accept authorize allow confirm;
reject decline deny refuse; assign allocate; verify check validate test; block ban forbid prevent protect;
restore recover undo revert; merge combine; refund reimburse return; charge bill; buy purchase order;
pay payment money; rerun retry redo repeat; rotate renew regenerate; watch follow subscribe;
like favorite bookmark star; emoji reaction; publish release; prune clean cleanup unused; leave quit exit;
grant give permit; revoke withdraw; attach link connect associate bind; detach unlink disconnect;
compare diff difference; convert transform; generate produce; write compose; count number total; train tune;
draw paint picture; talk speak speech voice; transcribe transcription dictation; scan recognize;
fail failure error broken; crash exception; message comment note; reply respond answer response; question ask prompt;
image picture photo; video movie clip; audio voice sound; user person account member teammate coworker employee;
collaborator contributor; owner author; team group; organization company; customer client buyer shopper;
product article; item entry element; repository project codebase; file document; content text body; folder directory;
log output history; history audit timeline; version revision; tag label; keyword topic;
setting configuration preference option; secret password credential; key token credential;
permission access right privilege role; rule policy; notification alert; vulnerability advisory security;
statistic metric usage analytic; visitor visit view traffic; event activity; webhook hook callback;
pipeline workflow build; machine server host node; process task job; replica instance copy; scale resize;
cluster swarm; volume disk storage; memory ram; network subnet; variable parameter; link url; address location;
site website page; plan subscription; recurring subscription; discount coupon promotion voucher;
invoice bill receipt; quote estimate offer; fund balance money; bank account; cart basket checkout; mail email;
phone telephone mobile; child sub nested; parent upstream; latest newest recent last; next upcoming;
old previous past; summary overview; limit quota; cost price fee spend; currency exchange; health status state alive;
chat conversation; assistant agent; embedding vector; batch bulk; delay wait sleep slow; redirect forward;
animal pet; size space capacity; stock inventory; ticket pass; hour time schedule; schedule cron timer;
default standard; public visible; private hidden; issue bug ticket; review feedback; approve sign; reviewer approver;
follower fan; attachment asset binary; archive zip tarball; deadline due; board kanban; discussion forum;
snippet gist; license licence; popular trending; mute silence unsubscribe; merchant seller vendor; metered usage;
adjustment credit; reader terminal; shipping delivery postage; report statement; trial free; top deposit;
expose ingress; firewall policy; drain evict; workload deployment; worker node; machine vm; shell exec terminal;
command exec; snapshot commit backup; layer history; ping alive; registry hub; cpu memory stat;
moderation toxic unsafe offensive nsfw; autocomplete completion; summarize completion; ask chat completion;
knowledge library vector; subtitle transcription caption; bot assistant agent; checkpoint snapshot; spend cost;
similar embedding; resend redeliver; increase raise extend; kick remove expel; join enter; owner admin;
country region; contact address
"""

# The words before the colon stand for all the words after it; a comma separates alternatives.
_EXPANSIONS = """
repo: repository; repository: repo; org: organization; organization: org; pr: pull request;
mr: pull request, merge request; ci: check, workflow, status; cd: deployment; env: environment; var: variable;
config: configuration; configuration: config; auth: authentication, authenticate, authorization; db: database;
doc: document, documentation; info: information; admin: administrator; dir: directory; img: image; pic: image;
msg: message; param: parameter; pref: preference; perm: permission; stat: statistic, usage; acct: account;
app: application; id: identifier; spec: specification; dev: development; prod: production; max: maximum;
min: minimum; cert: certificate; cred: credential; notif: notification; sub: subscription; txn: transaction;
2fa: two factor authentication; mfa: two factor authentication, multi factor authentication; sso: single sign;
pat: personal access token; vm: virtual machine; os: operating system; kyc: identity verification; vat: tax;
gst: tax; cc: card; llm: model; gpt: model; tts: speech; stt: transcription; asr: transcription;
ocr: ocr, text image; ft: fine tuning; sbom: bill material; kube: kubernetes; kubectl: kubernetes; k8s: kubernetes;
cm: config map; po: pod; svc: service; sa: service account; ns: namespace; deploy: deployment; ds: daemon set;
rs: replica set; rc: replication controller; sts: stateful set; hpa: horizontal pod autoscaler;
autoscale: autoscaler; pv: persistent volume; pvc: persistent volume claim; sc: storage class;
pdb: pod disruption budget; cj: cron job; crd: custom resource definition; csr: certificate signing request;
netpol: network policy; ing: ingress; ep: endpoint; rbac: role; ls: list; rm: remove, delete; ps: list container;
cp: copy; mv: move, rename; cat: read content; mkdir: create directory; df: disk usage; du: disk usage;
exec: exec, execute; turn on: enable, create; turn off: disable; switch on: enable; switch off: disable;
shut down: stop; log in: login, authenticate; log out: logout; sign up: register, create; set up: create, configure;
roll back: rollback, revert; get rid: delete; look up: find, search; spin up: create, start; tear down: delete;
away: remove; kick off: start, trigger; kick out: remove; let in: invite, approve; take away: remove, revoke;
give access: add permission, add collaborator; logged in: authenticated; my: authenticated user, current;
mine: authenticated user, current; i: authenticated user; me: authenticated user; who: user; how many: count;
how much: usage, balance; money back: refund; save card: setup intent; payment url: payment link;
promo code: promotion code; credit card: card, payment method; bank transfer: payout, transfer;
direct debit: mandate; virtual card: issuing card; customer portal: billing portal;
custom resource: custom resource definition; load balancer: service, ingress; service user: service account;
read aloud: speech; source code: archive, content; security hole: vulnerability, advisory;
leaked secret: secret scanning; static analysis: code scanning; code review: pull request review;
build log: workflow log, job log; due date: milestone; work on: contributor; clean up: prune, delete;
free space: prune, usage; sign off: approve; give back: refund, return; throw away: delete; put back: restore;
hand out: grant; cut off: revoke, disable; go through: list; find out: get; make sure: check, verify;
knowledge base: vector store, library
"""

# A request that starts with one of these changes something.
_WRITING = frozenset(
    """abort accept activate add append apply approve archive assign attach authorize ban begin block build buy cancel
    capture change clear clone close commit configure confirm connect convert copy create deactivate decline delete
    deny deploy destroy detach disable disconnect dismiss drop duplicate edit enable encrypt end erase evict execute
    expire finalize fork generate give grant halt import increase insert install invite join kill launch leave lock
    make mark merge migrate modify move mute new patch pause pay pin post prevent promote provision prune publish
    purchase push put reassign rebuild redeliver refund refuse register reject remove rename reopen replace reply
    rerun resend reset resize resolve restart restore resume retry revert revoke rm rotate run save scale send set
    shut sign simulate start stop store submit subscribe suspend switch sync terminate transcribe transfer translate
    trigger turn unarchive undo unassign unblock unfollow uninstall unlink unlock unmute unpause unstar unsubscribe
    update upgrade upload upsert verify void withdraw write
    """.split()
)


# A request with one of these may remove something, and so does an operation whose name has one of the first.
_REMOVING = "delete remove destroy purge erase"
_WANTING_REMOVAL = """abort cancel clean clear detach discard disconnect drop evict expire forget kick kill leave prune
    reset revoke rid rm stop tear terminate throw unassign unblock undo unfollow uninstall unlink unlock unstar
    unsubscribe void wipe withdraw"""

PARTICLES = frozenset("back down in off on out over up".split())
"""Words that are part of a verb: `pay out` may be `payout`."""


def plain_text(text: str) -> str:
    """Return a text without HTML tags and without the addresses of links."""
    return _MARKUP.sub(" ", text)


def words(text: str, *, joined: bool = True) -> Iterator[str]:
    """Yield the words of a text in lower case. Identifiers are split: `getConfigMap` is `get`, `config`, `map`.

    With `joined`, an identifier of two or three parts is a word as well: `ConfigMap` is also `configmap`.
    """
    for word in _WORD.findall(text):
        if len(word) > _MAX_WORD:
            continue
        lower = word.lower()
        if lower != word and not word.isupper() and len(parts := _PART.findall(word)) > 1:
            yield from (part for each in parts if not _VERSION.fullmatch(part := each.lower()))
            if len(parts) > 3 or not joined:
                continue
        if not _VERSION.fullmatch(lower):
            yield lower


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """Return the stem of a word in lower case: `finalizing`, `finalized` and `finalization` have the same."""
    word = _IRREGULAR.get(word, word)
    if len(word) <= 3 or not word.isascii() or not word.isalpha():
        return word
    if word.endswith("ies") and len(word) > 4:
        word = f"{word[:-3]}y"
    elif word.endswith(("sses", "xes", "ches", "shes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for suffix, replacement, least in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= least:
            word = word[: -len(suffix)] + replacement
            break
    if len(word) > 3 and word[-1] == "e":
        word = word[:-1]
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiousz":
        word = word[:-1]
    return word


def misspellings(word: str) -> Iterator[str]:
    """Yield the words one letter away: one too many, one missing, one wrong, two swapped. The first letter is kept."""
    for at in range(1, len(word) + 1):
        left, right = word[:at], word[at:]
        if right:
            yield left + right[1:]
        if len(right) > 1:
            yield left + right[1] + right[0] + right[2:]
        for letter in _LETTERS:
            yield left + letter + right
            if right:
                yield left + letter + right[1:]


class Thesaurus(NamedTuple):
    """Stems and the stems that they stand for, and the verbs that write, that remove, and that ask for removal."""

    synonyms: dict[str, tuple[str, ...]]
    expansions: dict[tuple[str, ...], tuple[tuple[str, ...], ...]]
    writing: frozenset[str]
    removing: frozenset[str]
    wanting_removal: frozenset[str]


@cache
def thesaurus() -> Thesaurus:
    """Return the tables of this module by stem; they are built on first use, in 1 ms."""
    synonyms: dict[str, dict[str, None]] = {}
    for words_of_group in _SYNONYMS.split(";"):
        group = [stem(word) for word in words_of_group.split()]
        for each in group:
            synonyms.setdefault(each, {}).update(dict.fromkeys(other for other in group if other != each))
    expansions = {
        tuple(map(stem, short.split())): tuple(tuple(map(stem, each.split())) for each in long.split(","))
        for short, _, long in (each.partition(":") for each in _EXPANSIONS.split(";"))
    }
    removing = frozenset(map(stem, _REMOVING.split()))
    return Thesaurus(
        {key: tuple(value) for key, value in synonyms.items()},
        expansions,
        frozenset(map(stem, _WRITING)),
        removing,
        removing.union(map(stem, _WANTING_REMOVAL.split())),
    )
