# Every target says what it is for: make help
SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
# Tools of the environment first, whatever shell make was called from.
export PATH := $(CURDIR)/.venv/bin:$(PATH):/usr/sbin:/sbin
export PYTHONPATH := $(CURDIR)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
LOCALCLOUD := $(PYTHON) -m localcloud
CLOUDS := $(or $(TPUFLEET_LOCALCLOUD_DIR),.localcloud)
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo --preserve-env=PATH,PYTHONPATH,TPUFLEET_LOCALCLOUD_DIR)

MADE = .venv .pytest_cache .ruff_cache .hypothesis .ansible dist site docs/reference \
	$(shell find . \( -path ./.venv -o -path ./.localcloud \) -prune -o -name __pycache__ -type d -prune -print)

.PHONY: help
help: ## show this list
	@awk -F ":.*## " '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: env
env: ## the controller's environment (.venv) and the system packages that are missing
	@requirements/install-system
	@requirements/install-venv controller

.PHONY: env-localcloud
env-localcloud: env ## what the local cloud needs beside that: its system packages, its bucket's emulator
	@requirements/install-system localcloud
	@requirements/install-venv localcloud

.PHONY: env-dev
env-dev: env-localcloud ## what tests and lint need beside that
	@requirements/install-venv dev

.PHONY: demo
demo: env-localcloud ## a local cloud, a TPU of two workers, setup, a training run, its result
	@$(PYTHON) -u -m localcloud.demo

.PHONY: test
test: lint docs browser test-unit test-molecule test-journey ## everything that is tested (Linux, root)

.PHONY: browser
browser: ## a browser without a window, if there is none: tests look at the report's page with it
	@for name in chromium-headless-shell chromium chromium-browser google-chrome; do \
		! command -v $$name >/dev/null || exit 0; done; \
	requirements/install-system browser || echo 'no browser could be installed: what one draws is not tested'

.PHONY: test-unit
test-unit: env-dev ## the tests that need no machines
	@$(PYTHON) -m pytest -m 'not machines and not qemu' --numprocesses 2 --dist loadfile tests

.PHONY: test-molecule
test-molecule: env-dev ## the roles on machines: check, converge, idempotence, verify
	@trap '$(AS_ROOT) $(LOCALCLOUD) --name molecule down --yes' EXIT; trap 'exit 130' INT TERM; \
	$(AS_ROOT) $(LOCALCLOUD) --name molecule up && $(AS_ROOT) molecule test --scenario-name default

.PHONY: test-journey
test-journey: env-dev ## on machines: create, train, kill, resume, preempt, delete; five faults of make chaos
	@$(AS_ROOT) env TPUFLEET_CHAOS=some $(PYTHON) -m pytest -m machines tests

.PHONY: test-qemu
test-qemu: env-dev ## what needs a kernel: NFS, data disks, reboots, on qemu machines (half an hour if emulated)
	@requirements/install-system qemu
	@$(AS_ROOT) $(PYTHON) -m pytest -m qemu tests
	@trap '$(AS_ROOT) $(LOCALCLOUD) --name molecule-nfs down --yes' EXIT; trap 'exit 130' INT TERM; \
	$(AS_ROOT) $(LOCALCLOUD) --name molecule-nfs up --machines qemu && $(AS_ROOT) molecule test --scenario-name nfs

.PHONY: test-long
test-long: env-dev ## what takes too long for every change: setup interrupted, other Debians, kill on stubborn trainers, watch
	@$(AS_ROOT) env TPUFLEET_LONG=1 $(PYTHON) -m pytest -m machines \
		tests/journey/test_setup_interrupted.py tests/journey/test_kill.py tests/journey/test_watch.py \
		tests/journey/test_timers.py \
		tests/journey/test_unshared_checkpoints.py tests/journey/test_foreign_trainers.py \
		tests/journey/test_other_debians.py tests/journey/test_expired_addresses.py

.PHONY: chaos
chaos: env-dev ## all that can happen to a run of 4 workers, alone and in random order: WHAT=order SEED=2
	@$(AS_ROOT) env TPUFLEET_CHAOS="$(or $(WHAT),all)" TPUFLEET_CHAOS_SEED=$(or $(SEED),1) $(PYTHON) -m pytest -v -m machines tests/chaos

.PHONY: mutants
mutants: env-dev ## change records, leases, watch and schedules bit by bit, show what no test notices: WHAT=record JOBS=1
	@requirements/install-venv mutants
	@$(PYTHON) -m tests.mutation_check $(WHAT:%=--module=%) $(JOBS:%=--jobs=%)

.PHONY: lint
lint: env-dev ## ruff, ansible-lint (profile production), yamllint
	@ruff format --check --quiet . || { echo 'mend it: make format'; exit 1; }
	@ruff check --quiet .
	@yamllint --strict .
	@ANSIBLE_INVENTORY=localhost, ansible-lint --offline -qq

.PHONY: format
format: env-dev ## let ruff format the Python
	@ruff format .
	@ruff check --fix .

.PHONY: docs
docs: env-dev ## the documents as a site, in site/; a warning or a dead link is an error
	@$(PYTHON) -m sphinx --fail-on-warning --keep-going --quiet docs site
	@echo 'site/index.html'

.PHONY: release
release: env-dev ## the collection as it is published, in dist/, proven in an empty place
	@$(PYTHON) collections/release.py dist

.PHONY: lock
lock: env-dev ## newest versions into requirements/*.lock
	@requirements/lock

.PHONY: clean
clean: ## remove everything that was made: machines, mounts, bridges, tables, images, .venv
	@[ ! -d "$(CLOUDS)" ] || [ ! -x $(PYTHON) ] || $(AS_ROOT) $(LOCALCLOUD) clean --yes
	@[ ! -d "$(CLOUDS)" ] || { echo '$(CLOUDS) is left: make env, then make clean again'; exit 1; }
	@rm -rf $(MADE) 2>/dev/null || $(AS_ROOT) rm -rf $(MADE)  # what sudo wrote is root's
	@echo 'clean'
