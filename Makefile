# Needs Python 3.11; the rest is fetched into .venv*, whose stamps make a second run quick. PYENV_VERSION wakes pyenv's shims.
PYTHON ?= $(firstword $(foreach p,python3.11 python3,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
GROUPS = demo test check docs judges judges-sdk1 mutants bench bench-pydantic-ai bench-fastmcp bench-faststream bench-arq bench-taskiq bench-celery bench-fastapi bench-utcp bench-bm25s
INSTALL = .venv/bin/uv pip install -q -e . $(if $(filter test check bench mutants .venv3%,$* $@),-e conformance)
COMPILE = .venv/bin/uv pip compile -q --upgrade --universal --python-version 3.11 --no-annotate --no-header
export PYTHONDONTWRITEBYTECODE =# compiled tests save 60 s of CPU time per run
.PHONY: help demo test removable coverage chaos soak check docs bench judges console browser mutants lock clean
.PRECIOUS: .venv3%/.done .venv-%/.done %/node_modules/.done

help:  ## list the commands
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

demo: .venv/.demo  ## run the demonstration
	.venv/bin/opwire demo

# More processes than cores: tests wait for leases and timeouts. Each takes 10 s of CPU time to collect the tests.
test: .venv/.test  ## run the tests on one Python, except the slow ones
	.venv/bin/pytest -q -n 4 --dist worksteal --ignore=tests/judges -m "not slow"
removable: .venv/.test  ## delete each part in a copy, and import and collect what is left
	.venv/bin/python -m tests.removable
coverage: .venv/.test  ## run the tests on every Python of this machine, on one of them with coverage
	.ci/coverage

chaos: .venv/.demo  ## 100,000 calls through injected faults; another run with SEED=2
	.venv/bin/python -m tests.chaos --calls 100000 --seed $(or $(SEED),1)
soak: .venv/.test  ## ten minutes of calls and random kills over each engine in turn; another length with MINUTES=3
	SUBSCRIPTIONS=10000 .venv/bin/pytest -q tests/protocol/test_handler.py -k subscriptions_at_once
	.venv/bin/python -m tests.soak.hubs && .venv/bin/python -m tests.soak --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)
check: .venv/.check  ## format, lint, types, import layers
	.venv/bin/ruff format --check . && .venv/bin/ruff check .
	.venv/bin/pyright && .venv/bin/mypy tests/typing && .venv/bin/lint-imports --no-cache
docs: .venv-docs/.done  ## build the documentation into build/site; needs npm
	sh docs/theme/mermaid.sh && .venv-docs/bin/python docs/embed.py && .venv-docs/bin/zensical build --clean --strict
bench: $(patsubst %,.venv-%/.done,$(filter bench%,$(GROUPS)))  ## measure against a control and the peers
	.venv-bench/bin/python -m benchmarks

judges: .venv/.test .venv-judges/.done .venv-judges-sdk1/.done tests/judges/node_modules/.done console/node_modules/.done  ## test opwire with independent programs; needs npm
	@command -v spin >/dev/null || apt-get install -qq spin >/dev/null 2>&1 || echo "no spin here: the model is not checked"
	.venv/bin/pytest tests/judges -n 2 --dist loadfile
console: console/node_modules/.done  ## build the page of the console, whose files are committed; needs npm
	npm run --prefix console check && npm run --prefix console build
%/node_modules/.done: %/package-lock.json
	npm ci --prefix $* --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@
browser:  ## install Chromium, in which the judges test the console
	command -v chromium || apt-get install -y --no-install-recommends chromium
mutants: .venv-mutants/.done  ## mutation testing; one module with MODULE='opwire.errors*'
	CI=true .venv-mutants/bin/mutmut run "$(or $(MODULE),opwire.*)" && .venv-mutants/bin/mutmut results --all true | sed '/: not checked/d; /: killed/d'
lock: .venv/bin/uv  ## rewrite requirements/*.txt with the newest versions that pyproject.toml allows
	@for group in $(GROUPS); do $(COMPILE) --group $$group pyproject.toml -o requirements/$$group.txt || exit 1; done
clean:  ## remove environments, caches and reports
	rm -rf .venv* tests/judges/node_modules console/node_modules .coverage* .hypothesis .*_cache mutants dist build && find . -name __pycache__ -prune -exec rm -rf {} +
.venv/bin/uv:
	$(or $(PYTHON),$(error opwire needs Python 3.11 or newer; `make PYTHON=...` names one)) -m venv .venv
	.venv/bin/pip install -q uv==0.13.7
.venv/.%: requirements/%.txt pyproject.toml conformance/pyproject.toml | .venv/bin/uv
	$(INSTALL) --python .venv -r $< && touch $@
.venv3%/.done: requirements/test.txt pyproject.toml conformance/pyproject.toml | .venv/bin/uv
	PYENV_VERSION=3.$* .venv/bin/uv venv -q --clear --no-python-downloads --python python3.$* .venv3$*
	$(INSTALL) --python .venv3$* -r $< && touch $@
.venv-%/.done: requirements/%.txt pyproject.toml | .venv/bin/uv
	.venv/bin/uv venv -q --clear --python .venv/bin/python .venv-$*
	$(INSTALL) --python .venv-$* -r $< && touch $@
