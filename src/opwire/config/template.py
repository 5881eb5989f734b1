"""The file that `opwire init` writes.

Lines with "# " are comments, lines with "#" alone are examples. Tests check that the file is valid both unchanged and
with all examples enabled.
"""

TEMPLATE = """\
# opwire.toml: the sources of operations, and how they are served.
#
# Lines that start with "#" and no space are examples: remove the "#" to use them.
# Secrets belong in the environment: "${NAME}" or { env = "NAME" } is replaced by the variable NAME.
# `opwire doctor` checks this file and everything that it refers to.

# --- Sources of operations -------------------------------------------------------------------------------------------
# Every source may have: enabled = false, required = true (by default a failure is reported, and the others are used),
# timeout = 30 (seconds to load it), normalize = "fit" | "cast" | "check" | "off", strip = true | false,
# include = ["time.*"], exclude = ["time.set_*"], rename = { "time.get_current_time" = "clock.now" }.

# Python functions: an OperationRegistry in a module beside this file, or in an installed package.
#[sources.shop]
#python = "shop.operations:registry"

# An MCP server that is a program. The ids of its tools start with "time."
#[sources.time]
#command = "uvx"
#args = ["mcp-server-time"]
#env = { LOCAL_TIMEZONE = "Europe/Vienna" }

# An MCP server behind a URL. type = "sse" selects the transport of 2024.
#[sources.tools]
#url = "https://tools.example/mcp"
#headers = { Authorization = "Bearer ${TOOLS_TOKEN}" }
#trust_annotations = true  # tools that it marks as read-only are queries
#strict_input = true  # reject arguments that do not match their schema; by default the server decides
#revision = "2025-06-18"  # the only revision of the protocol to speak; by default the latest that both know
#auth = { login = true, client_id = "opwire" }  # instead of headers; `opwire login tools` signs in, also without this
# or auth = { caller = "token" }, that of each caller; or a function, "keys.py:key_of", or a client with exchange = true

# All servers of a file of another program, each with its key there as the namespace.
#[sources.desktop]
#mcp_servers = "claude_desktop_config.json"

# An HTTP API with an OpenAPI document: a file or a URL.
#[sources.github]
#openapi = "https://api.example/openapi.json"
#namespace = "gh"  # instead of "github"
#base_url = "https://api.example"
#include = ["repos/*", "GET /users/*"]  # operationId, tag, path, or "GET /path"
#exclude = ["repos/delete"]
#trust_annotations = false  # true uses the ids and types in the document of another opwire
#call_timeout = 20
#tls = { client_certificate = "robot.pem", client_key = "robot.key" }  # mutual TLS
#[sources.github.credentials]  # by the names of the document's security schemes
#token = "${GITHUB_TOKEN}"
#login = { user = "robot", password = "${GITHUB_PASSWORD}" }
#oauth = { client_id = "robot", client_secret = "${GITHUB_SECRET}", scopes = ["repo"] }
#person = { client_id = "cli", login = true }  # `opwire login github` signs in

# Its webhooks are subscriptions, and are received at /webhooks/github of [serve.http].
#[sources.github.webhooks]
#signature = "github"  # or "stripe" or "standard"; or verify = "shop.hooks:verify", a function of yours
#secret = "${GITHUB_WEBHOOK_SECRET}"
#events = ["issues-*", "push"]  # all by default

# --- Callers ---------------------------------------------------------------------------------------------------------
# Callers with this token are "alice". The scope "*" includes every scope.

#[identities.alice]
#token = "${ALICE_TOKEN}"  # python -c "import secrets; print(secrets.token_urlsafe())"
#scopes = ["shop:read", "shop:write"]
#resources = { order = ["read", "refund"] }
#announces = ["shop"]  # the namespaces that it may serve at a hub
#delegates = true  # it may pass on the identity of its own callers
#undescribed = true  # it may announce operations without describing them: their schemas are unknown

# An identity for callers without a token: see `anonymous` below.
#[identities.guest]
#scopes = ["shop:read"]

# Signed tokens.
#[auth.jwt]
#algorithms = ["RS256"]
#audience = "opwire"
#issuer = "https://id.example"
#jwks_url = "https://id.example/.well-known/jwks.json"

# Tokens that an OAuth authorization server issued for this server.
#[auth.oauth]
#resource = "https://tools.example/mcp"  # the public URL of this server
#issuer = "https://id.example"
#required_scopes = ["tools"]  # of every token

# --- Views: some of the operations, under other names, with other inputs and results ----------------------------------

#[views.support]
#include = ["shop", "source:github", "type:query"]  # ids with * and ?, namespaces, tags; source:, type:, tag:, scope:
#exclude = ["*.delete*"]
#rename = { "github" = "code", "shop.order" = "shop.buy" }
#scopes = ["support"]  # required of callers
#search = "auto"  # or "always": tools_search, tools_describe and tools_call instead of all operations
#token_budget = 10000  # of all definitions, above which "auto" takes effect
#code = true  # tools_search and tools_run, which runs Python that calls operations, instead
#pinned = ["shop.buy"]  # seen without a search
#[views.support.reshape."shop.order"]  # an id, or a pattern
#description = "Order articles for the customer who calls."
#rename = { lines = "items" }
#fix = { currency = "EUR" }  # hidden from callers
#from_context = { customer = "identity.id" }  # or identity.scopes, or metadata.NAME
#hide = ["debug"]
#narrow = { lines = { maxItems = 10 } }  # keywords of JSON Schema
#keep = ["total", "customer.name"]  # fields of the result
#max_chars = 4000  # of the result; the operation results.more returns the rest

# --- Policies: around every call, in this order -----------------------------------------------------------------------
# Each may have: include = ["shop", "type:mutation"], exclude = ["*.delete*"].

#[policies.audit]
#path = "audit.jsonl"  # a line of JSON per call
#values = true  # with inputs, whose secrets are replaced; false by default
#[policies.budget]
#calls = 100  # for one request, with all calls that are made for it
#[policies.rate]
#calls = 10
#per = 1  # seconds
#by = ["identity"]  # or operation, namespace
#[policies.concurrency]
#calls = 8
#wait = 5  # seconds; 0 rejects at once
#[policies.breaker]
#failures = 5  # in a row, of one namespace
#pause = 30  # seconds
#[policies.approval]
#ask = "console"  # or "caller", over MCP, or "approvals.py:ask", a function that returns True, False or a reason
#include = ["type:mutation"]  # the default
#[policies.cache]
#ttl = 60  # seconds for results of queries without rules of HTTP; 0, the default: only those with rules
#include = ["shop.price"]

# --- Surfaces: `opwire serve` ----------------------------------------------------------------------------------------

#[serve.mcp]
#transport = "http"  # or "stdio", the default: the caller is the parent process, which is trusted
#host = "127.0.0.1"
#port = 8000
#name = "shop"
#instructions = "Orders of the shop."
#view = "support"  # all operations by default
#durable_tasks = ["shop.order"]  # calls that survive a restart, in the journal of [durable]; without a view
#state_key = "${STATE_KEY}"  # signs their ids, and questions: a secret of all servers behind one address

#[serve.http]
#host = "127.0.0.1"
#port = 8080
#title = "Shop"
#hosts = ["localhost", "shop.example"]  # accepted host names
#servers = ["https://shop.example/api"]  # public URLs, for the document
#cors_origins = ["https://shop.example"]
#anonymous = "guest"  # by default, callers without a token reach public operations only
#console = true  # a web page at /console; the link that `opwire serve` prints signs in

# --- More than one process: `opwire hub`, `opwire spoke` -------------------------------------------------------------

#[hub]
#url = "ws://127.0.0.1:8700"
#linger = 30  # seconds that the operations of a lost spoke are kept
#cluster = "nats://127.0.0.1:4222"  # hubs with the same broker are one; or redis://…
#cluster_secret = "${OPWIRE_CLUSTER_SECRET}"  # proves the hubs to each other

#[spoke]
#url = "ws://127.0.0.1:8700"  # a hub, or redis://… or nats://…
#token = "${ALICE_TOKEN}"
#name = "shop-1"
#announces = ["shop.*"]  # the operations that others see; all by default

# Over a broker: other prefixes are not reached, and signatures prove who calls. Without them callers are anonymous.
#prefix = "shop"
#[spoke.signed]
#key_file = "shop.key"  # or key = "${SHOP_KEY}"
#certificate_file = "shop.certificate"
#authorities = ["authority.pem"]  # whose certificates are accepted

# Mutations that must not be lost, from a journal in Redis or NATS.
#[durable]
#url = "redis://127.0.0.1:6379"
#operations = ["shop.order"]  # every mutation by default
#anonymous = "guest"
#trusted = true  # believe the identity that a caller states; every program that can write to the journal may state any

# --- The rest --------------------------------------------------------------------------------------------------------

#[registry]
#normalize = "fit"  # how results that do not match their schema are repaired
#strip = true  # remove properties that are missing in the schema
#max_workers = 32  # threads for functions that are not async

#[limits]
#call_timeout = 300  # seconds; over MCP, seconds without progress
#max_body = 4194304  # bytes of a request
#max_requests = 1000  # concurrent
#max_calls = 10000  # in flight
#rate = 100.0  # calls per second and client of the hub
#burst = 1000
"""
"""A commented `opwire.toml` with an example of every setting."""
