"""The file that `opwire init` writes."""

# Lines that begin with "# " explain. Lines that begin with "#" alone are examples: take the "#" away to use them. Both
# the file as it is and the file with every example in use are valid, which is tested.
TEMPLATE = """\
# opwire.toml: what opwire loads, and how it serves it.
#
# Lines that begin with "#" and no space are examples: take the "#" away to use them.
# Secrets stand in the environment, never here: "${NAME}" or { env = "NAME" } is replaced by the variable NAME.
# `opwire doctor` checks this file and everything that it names.

# --- Sources: where operations come from -----------------------------------------------------------------------------
# Every source may say: enabled = false, required = true (else a failure is reported, and the others go on),
# timeout = 30 (seconds to load it), normalize = "fit" | "cast" | "check" | "off", strip = true | false.

# Python functions: an OperationRegistry in a module beside this file, or in an installed package.
#[sources.shop]
#python = "shop.operations:registry"

# An MCP server that is a program. The tools of this one are called time.…
#[sources.time]
#command = "uvx"
#args = ["mcp-server-time"]
#env = { LOCAL_TIMEZONE = "Europe/Vienna" }

# An MCP server behind a URL. type = "sse" for those that speak the transport of 2024.
#[sources.tools]
#url = "https://tools.example/mcp"
#headers = { Authorization = "Bearer ${TOOLS_TOKEN}" }
#trust_annotations = true  # tools that it calls read-only are queries

# All servers of a file that another program uses already, each in the namespace of its key there.
#[sources.desktop]
#mcp_servers = "claude_desktop_config.json"

# An HTTP API that has an OpenAPI document: a file or a URL.
#[sources.github]
#openapi = "https://api.example/openapi.json"
#namespace = "gh"  # instead of "github"
#base_url = "https://api.example"
#include = ["repos/*", "GET /users/*"]  # operationId, tag, path, or "GET /path"
#exclude = ["repos/delete"]
#trust_annotations = false  # true for the document of another opwire: its ids and types count
#call_timeout = 20
#[sources.github.credentials]  # by the names of the document's security schemes
#token = "${GITHUB_TOKEN}"
#login = { user = "robot", password = "${GITHUB_PASSWORD}" }
#oauth = { client_id = "robot", client_secret = "${GITHUB_SECRET}", scopes = ["repo"] }

# --- Who may call ----------------------------------------------------------------------------------------------------
# Whoever shows this token is "alice". The scope "*" holds every scope.

#[identities.alice]
#token = "${ALICE_TOKEN}"  # python -c "import secrets; print(secrets.token_urlsafe())"
#scopes = ["shop:read", "shop:write"]
#resources = { order = ["read", "refund"] }
#announces = ["shop"]  # the namespaces in which it may serve operations at a hub
#delegates = true  # it may call others with the identity of a caller whose call it serves

# Whoever shows none may be somebody too: see `anonymous` below.
#[identities.guest]
#scopes = ["shop:read"]

# Signed tokens.
#[auth.jwt]
#algorithms = ["RS256"]
#audience = "opwire"
#issuer = "https://id.example"
#jwks_url = "https://id.example/.well-known/jwks.json"

# --- Surfaces: `opwire serve` ----------------------------------------------------------------------------------------

#[serve.mcp]
#transport = "http"  # or "stdio", the default: the program that starts opwire calls, and is trusted
#host = "127.0.0.1"
#port = 8000
#name = "shop"
#instructions = "Orders of the shop."

#[serve.http]
#host = "127.0.0.1"
#port = 8080
#title = "Shop"
#hosts = ["localhost", "shop.example"]  # the names that it answers to
#cors_origins = ["https://shop.example"]
#anonymous = "guest"  # without it, callers that show no token reach public operations only

# --- More than one process: `opwire hub`, `opwire spoke` -------------------------------------------------------------

#[hub]
#url = "ws://127.0.0.1:8700"
#linger = 30  # seconds that the operations of a lost spoke stay known

#[spoke]
#url = "ws://127.0.0.1:8700"  # a hub, or redis://… or nats://…
#token = "${ALICE_TOKEN}"
#name = "shop-1"

# --- The rest --------------------------------------------------------------------------------------------------------

#[registry]
#normalize = "fit"  # what happens to results that do not match their schema
#strip = true  # properties that the schema does not know are removed
#max_workers = 32  # threads of functions that are not async

#[limits]
#call_timeout = 30  # seconds
#max_body = 4194304  # bytes of a request
#max_requests = 1000  # at the same time
#max_calls = 10000  # open at the same time
#rate = 100.0  # calls a second of one client of the hub
#burst = 1000
"""
"""A commented `opwire.toml`, valid as it is."""
