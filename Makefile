# To list the targets: make help
SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
# Let recipes find programs in .venv first, whatever PATH make was called with.
export PATH := $(CURDIR)/.venv/bin:$(PATH):/usr/sbin:/sbin
export PYTHONPATH := $(CURDIR)
# Let Python write bytecode, even if the caller's environment forbids it: without bytecode, PyTorch and transformers
# start 8 s later.
export PYTHONDONTWRITEBYTECODE :=
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
LOCALCLOUD := $(PYTHON) -m localcloud
CLOUDS := $(or $(TPUFLEET_LOCALCLOUD_DIR),.localcloud)
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo --preserve-env=PATH,PYTHONPATH,TPUFLEET_LOCALCLOUD_DIR)

MADE = .venv .venv-tpu .venv-transformers .pytest_cache .ruff_cache .hypothesis .ansible dist site docs/reference \
	$(shell find . \( -path './.venv*' -o -path ./.localcloud \) -prune -o -name __pycache__ -type d -prune -print)

.PHONY: help
help: ## List the targets
	@awk -F ":.*## " '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: env
env: ## Install the controller: .venv and missing system packages
	@requirements/install-system
	@requirements/install-venv controller

.PHONY: env-localcloud
env-localcloud: env ## Install the controller and what the local cloud needs
	@requirements/install-system localcloud
	@requirements/install-venv localcloud

.PHONY: env-dev
env-dev: env-localcloud ## Install the controller, the local cloud, and what tests and lint need
	@requirements/install-venv dev

.PHONY: env-compile
env-compile: env ## Install JAX and libtpu in .venv-tpu, for: .venv-tpu/bin/python -m train compile
	@[ -x .venv-tpu/bin/python ] || .venv/bin/uv venv --quiet --python $(PYTHON) .venv-tpu
	@UV_SYSTEM_CERTS=true .venv/bin/uv pip install --quiet --python .venv-tpu/bin/python \
		--require-hashes -r requirements/worker-tpu.lock

.PHONY: env-transformers
env-transformers: env ## Install transformers and PyTorch in .venv-transformers (6 GB), for tests that compare models
	@[ -x .venv-transformers/bin/python ] || .venv/bin/uv venv --quiet --python $(PYTHON) .venv-transformers
	@UV_SYSTEM_CERTS=true .venv/bin/uv pip install --quiet --python .venv-transformers/bin/python \
		--require-hashes -r requirements/transformers.lock

.PHONY: demo
demo: env-localcloud ## Start a local cloud, create a TPU with two workers, set it up, train
	@$(PYTHON) -u -m localcloud.demo

.PHONY: test
test: env-dev ## Run lint and most tests, build the docs (Linux, root); CI runs this and test-large
	@$(MAKE) --no-print-directory --jobs=3 lint docs browser env-compile env-transformers
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory --jobs=3 test-faults test-journey test-molecule test-localcloud

.PHONY: browser
browser: ## Install a headless browser if there is none; tests render the report with it
	@for name in chromium-headless-shell chromium chromium-browser google-chrome; do \
		! command -v $$name >/dev/null || exit 0; done; \
	requirements/install-system browser || echo 'no browser could be installed: how the report looks is not tested'

.PHONY: test-unit
test-unit: env-dev env-compile env-transformers ## Run the tests that need no machines
	@# Without --max-worker-restart 0, pytest-xdist hangs after a process of the tests has died.
	@$(PYTHON) -m pytest -m 'not machines and not qemu' --numprocesses 3 --max-worker-restart 0 --dist loadfile tests

.PHONY: test-compile
test-compile: env-dev env-compile ## Compile every preset for every kind of TPU slice and each fsdp (hours)
	@TPUFLEET_COMPILE=all $(PYTHON) -m pytest --numprocesses 2 tests/train/compile

.PHONY: test-large
test-large: env-dev env-transformers ## Compare the trainer with transformers: Llama 3.2 1B and Qwen3 0.6B with random weights (12 GB of memory)
	@TPUFLEET_LARGE=1 $(PYTHON) -m pytest tests/train/test_large_models.py

SECRETS := tests/journey/test_secrets.py

.PHONY: test-molecule
test-molecule: env-dev ## Test the roles on machines (check, converge, idempotence, verify); on the same machines, test secrets
	@trap '$(AS_ROOT) $(LOCALCLOUD) --name molecule down --yes' EXIT; trap 'exit 130' INT TERM; \
	$(AS_ROOT) $(LOCALCLOUD) --name molecule up && $(AS_ROOT) molecule test --scenario-name default && \
	$(AS_ROOT) env TPUFLEET_TEST_CLOUD=molecule $(PYTHON) -m pytest $(SECRETS)

.PHONY: test-journey
test-journey: env-dev ## Test playbooks on machines: create, train, kill, resume, delete
	@$(AS_ROOT) $(PYTHON) -m pytest -m 'machines and not long' --ignore $(SECRETS) tests/journey

.PHONY: test-localcloud
test-localcloud: env-dev ## Test the machines of the local cloud
	@$(AS_ROOT) $(PYTHON) -m pytest -m machines tests/localcloud

.PHONY: test-faults
test-faults: env-dev ## Test the recovery of a run from five faults
	@$(AS_ROOT) env TPUFLEET_TEST_CLOUD= TPUFLEET_CHAOS=some $(PYTHON) -m pytest -m machines tests/chaos

.PHONY: test-qemu
test-qemu: env-dev ## Test NFS, data disks and reboots on qemu machines (half an hour without KVM)
	@requirements/install-system qemu
	@$(AS_ROOT) $(PYTHON) -m pytest -m qemu tests
	@trap '$(AS_ROOT) $(LOCALCLOUD) --name molecule-nfs down --yes' EXIT; trap 'exit 130' INT TERM; \
	$(AS_ROOT) $(LOCALCLOUD) --name molecule-nfs up --machines qemu && $(AS_ROOT) molecule test --scenario-name nfs

.PHONY: test-long
test-long: env-dev ## Run the slow tests on machines: setup, older Debian releases, kill, watch, timers, stored output, trainers, containers
	@$(AS_ROOT) $(PYTHON) -m pytest -m long tests/journey

.PHONY: chaos
chaos: env-dev ## Inject each fault into a run of 4 workers, first in a fixed order, then in a random one; only the random order, on 2 workers: WHAT=order SEED=2
	@$(AS_ROOT) env TPUFLEET_CHAOS="$(or $(WHAT),all)" TPUFLEET_CHAOS_SEED=$(or $(SEED),1) $(PYTHON) -m pytest -v -m machines tests/chaos

.PHONY: mutants
mutants: env-dev ## Change a copy of the code of records, leases, watch and timers; list the changes that no test notices; only one module, one test at a time: WHAT=record JOBS=1
	@requirements/install-venv mutants
	@$(PYTHON) -m tests.mutation_check $(WHAT:%=--module=%) $(JOBS:%=--jobs=%)

.PHONY: lint
lint: env-dev ## Run ruff, ansible-lint (profile production) and yamllint
	@ruff format --check --quiet . || { echo 'To format the code, run: make format'; exit 1; }
	@ruff check --quiet .
	@yamllint --strict .
	@ANSIBLE_INVENTORY=/dev/null ansible-lint --offline -qq

.PHONY: format
format: env-dev ## Format the Python code, and fix what ruff can fix
	@ruff format .
	@ruff check --fix .

.PHONY: docs
docs: env-dev ## Build the documentation in site/; a warning, such as a broken link between pages, is an error
	@$(PYTHON) -m sphinx --fail-on-warning --keep-going --quiet docs site
	@echo 'site/index.html'

.PHONY: release
release: env-dev ## Build the collection's archive in dist/, install it in an empty directory and check it there
	@$(PYTHON) collections/release.py dist

.PHONY: lock
lock: env-dev ## Update requirements/*.lock to the newest versions
	@requirements/lock

.PHONY: clean
clean: ## Remove everything that was created: machines, mounts, bridges, images, .venv
	@[ ! -d "$(CLOUDS)" ] || [ ! -x $(PYTHON) ] || $(AS_ROOT) $(LOCALCLOUD) clean --yes
	@[ ! -d "$(CLOUDS)" ] || { echo '$(CLOUDS) was not removed. Run: make env && make clean'; exit 1; }
	@rm -rf $(MADE) 2>/dev/null || $(AS_ROOT) rm -rf $(MADE)  # root owns what sudo wrote
	@echo 'clean'
