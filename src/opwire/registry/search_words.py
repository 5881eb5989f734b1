"""Words of requests and operations: splitting, stems, synonyms, abbreviations, misspellings.

The tables are general English, and the jargon of code hosting, payments, containers and models.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import NamedTuple

_MAX_WORD = 40  # characters; longer ones are hashes and encoded data

_MARKUP = re.compile(r"<[^<>]{0,300}>|\]\([^()\s]{0,400}\)|https?://[^\s)\"'<>]{0,400}")
_WORD = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^A-Z]+|[A-Z]+")  # HTTPServer: HTTP, Server
_VERSION = re.compile(r"v\d{1,3}(?:(?:alpha|beta|rc)\d{0,3})?")
_MIN_LONG = 6  # letters
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
start begin launch run trigger execute exec invoke dispatch; stop halt terminate kill end; cancel abort stop;
pause suspend; resume continue unpause; restart reboot; enable activate; disable deactivate; send deliver;
upload attach import;
download export save; copy duplicate clone; move transfer; approve accept authorize allow confirm;
reject decline deny refuse; assign allocate; verify check validate test; block ban forbid prevent protect;
restore recover undo revert; merge combine; refund reimburse; charge bill; buy purchase order;
pay payment money; rerun retry redo repeat; rotate renew regenerate; watch follow subscribe;
like favorite bookmark star; emoji reaction; publish release; prune clean cleanup unused; leave quit exit;
grant give permit; revoke withdraw; attach link connect associate bind; detach unlink disconnect;
compare diff difference; convert transform; generate produce; write compose; count number total; train tune;
draw paint picture image; talk speak speech voice; transcribe transcription dictation; scan recognize;
fail failure error broken; crash exception; message comment note; reply respond answer response; question ask prompt;
image picture photo; video movie clip; audio voice sound; user person account member coworker employee;
collaborator contributor; owner author; team group; organization company; customer client buyer shopper;
product article; item entry element; repository project codebase; file document; content text body; folder directory;
log output history; history audit timeline; version revision; tag label; keyword topic;
setting configuration preference option; secret password credential; key token credential;
permission access right privilege role; rule policy; notification alert; vulnerability advisory security;
statistic metric usage analytic; visitor visit view traffic; referral referrer; event activity; webhook hook callback;
pipeline workflow build; machine server host node; process task job; replica instance copy; scale resize;
cluster swarm; volume disk storage; memory ram; network subnet; variable parameter; link url; address location;
site website page; plan subscription; recurring subscription; discount coupon promotion voucher;
invoice bill receipt; quote estimate offer; fund balance money credit; bank account; cart basket checkout; mail email;
phone telephone mobile; child sub nested; parent upstream; latest newest recent last; next upcoming;
old previous past; summary overview; limit quota; cost price fee spend; currency exchange; health status state alive;
chat conversation; assistant agent; embedding vector; batch bulk; delay wait sleep slow; redirect forward;
animal pet; size space capacity; stock inventory; ticket pass; hour time schedule; schedule cron timer;
default standard; public visible; private hidden; issue bug ticket; review feedback; approve sign; reviewer approver;
follower fan; attachment asset binary; archive zip tarball; deadline due; board kanban; discussion forum;
snippet gist; license licence; popular trending; mute silence unsubscribe; merchant seller vendor; metered usage;
adjustment credit; reader terminal; shipping delivery postage; report statement; trial free; top deposit;
expose ingress; firewall policy; drain evict; workload deployment; worker node; machine vm; shell exec terminal;
command exec; snapshot commit backup; layer history; ping alive; cpu memory stat;
moderation toxic unsafe offensive nsfw; autocomplete completion; summarize completion; ask chat completion;
knowledge library vector; subtitle transcription caption; bot assistant agent; checkpoint snapshot; spend cost;
similar embedding; resend redeliver; increase raise extend; kick remove expel; join enter; owner admin;
country region; contact address; ask request; contribute contributor; continue append; restrict limit;
movement transaction; shop store
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
shut down: stop; log in: login, authenticate, auth; log into: login, authenticate, auth;
sign in: login, authenticate, auth; log out: logout; sign out: logout; sign up: register, create;
set up: create, configure;
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
free space: prune, usage; sign off: approve; give back: refund; pay back: refund; throw away: delete; put back: restore;
hand out: grant; cut off: revoke, disable; go through: list; find out: get; make sure: check, verify;
knowledge base: vector store, library; seller: account; merchant: account; extract text: ocr;
bug report: issue; port forward: portforward; write access: permission, collaborator;
read access: permission, collaborator; sales tax: tax; store credit: balance, credit;
bring up: start, create; bring down: stop, delete; back up: export, backup; check in: commit; hold off: pause;
wrap up: finish, complete, close; pick up: accept, claim
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

# Verbs that most interfaces have no operation for: they are an update.
_UPDATING = """activate archive close color deactivate demote dismiss hide make mark move promote publish put reassign
    rename reopen resolve scale switch turn unarchive unhide unpublish"""

# A request that starts with one of these, and with a determiner after it, is no change.
_READING = """check compare count describe display download explain export fetch find get inspect list look preview
    print query read retrieve search see show stream summarize tail test validate view"""

DETERMINERS = frozenset("a all an another each every my on our some that the these this those your".split())
"""Words that follow the verb of an imperative."""

# A request with one of these may remove something, and so does an operation with one of the first in its name.
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
    """Yield the words one letter away: one too many, one missing, one wrong, two swapped.

    The first letter of a short word is kept, or names of persons would become words.
    """
    for at in range(len(word) < _MIN_LONG, len(word) + 1):
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
    reading: frozenset[str]
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
    for word in _UPDATING.split():
        synonyms.setdefault(stem(word), {})[stem("update")] = None
    expansions = {
        tuple(map(stem, short.split())): tuple(tuple(map(stem, each.split())) for each in long.split(","))
        for short, _, long in (each.partition(":") for each in _EXPANSIONS.split(";"))
    }
    removing = frozenset(map(stem, _REMOVING.split()))
    return Thesaurus(
        {key: tuple(value) for key, value in synonyms.items()},
        expansions,
        frozenset(map(stem, _WRITING)),
        frozenset(map(stem, _READING.split())),
        removing,
        removing.union(map(stem, _WANTING_REMOVAL.split())),
    )
