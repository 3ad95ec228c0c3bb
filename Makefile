# make help lists the verbs. Needs Python 3.11 or newer and git; everything else goes into .venv.
# On Windows, without make: see environment.yml.

# make test CONSTRAINTS=constraints-lowest.txt: the oldest supported versions, in an environment of their own.
CONSTRAINTS := constraints.txt
VENV := .venv$(patsubst constraints%.txt,%,$(CONSTRAINTS))
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 python
RECENT := import sys; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help lab update test test-all notebooks book browser bench assignment grade fuzz clean \
  given-CHAPTERS given-OUT given-SUBMISSIONS switch-ALL switch-SOLUTIONS switch-NBGRADER

help:
	@echo "make lab        open the first chapter in JupyterLab (installs into $(VENV) the first time)"
	@echo "make update     bring a newer version; what you changed is kept"
	@echo "make test       run everything that proves the library and the notebooks"
	@echo "make test-all   the same with three seeds, and both notebooks of each chapter whole"
	@echo "make notebooks  build and execute the chapters whose source changed (ALL=yes: every chapter)"
	@echo "make book       build the site from the stored notebooks, into build/site (SOLUTIONS=no: without them)"
	@echo "make browser    try the notebooks and the site in a real browser; pictures go to build/browser"
	@echo "make bench      time each attention score on this machine"
	@echo "make assignment write the folder that students get (CHAPTERS=\"02 03\" OUT=folder)"
	@echo "make grade      grade what they hand in (SUBMISSIONS=folder OUT=grades.csv)"
	@echo "make fuzz       damage solved notebooks 1,000 times and grade each"
	@echo "make clean      remove .venv and every cache"

lab: $(STAMP)
	@echo "JupyterLab starts. Where no browser opens, go to the address that it prints below. Ctrl-C twice ends it."
	@$(PYTHON) -m jupyterlab --ServerApp.log_level=ERROR --LabApp.log_level=ERROR --LabApp.app_settings_dir=tools/jupyterlab \
	  --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $$(test "$$(id -u)" = 0 && echo --allow-root)

update: $(STAMP)
	@$(PYTHON) tools/update.py

test: $(STAMP)
	@$(PYTHON) tools/test.py

test-all: $(STAMP)
	@$(PYTHON) tools/test.py --all

notebooks: switch-ALL $(STAMP)
	@$(PYTHON) tools/build_notebooks.py $(if $(filter yes 1,$(ALL)),--all)
	@$(PYTHON) tools/address.py

book: switch-SOLUTIONS $(STAMP)
	@$(PYTHON) tools/book/build.py $(if $(filter no 0,$(SOLUTIONS)),--no-solutions)

browser: $(STAMP)
	@$(PYTHON) tools/browser/run.py $(CONSTRAINTS)

bench: $(STAMP)
	@$(PYTHON) -m synth_lib.lab bench attention --device cpu --minutes 5

assignment: given-CHAPTERS given-OUT switch-NBGRADER $(STAMP)
	@$(PYTHON) tools/classroom/assignment.py --chapters "$(CHAPTERS)" --out "$(OUT)" $(if $(REPO),--repo "$(REPO)") $(if $(REF),--ref "$(REF)") $(if $(filter yes 1,$(NBGRADER)),--nbgrader)

grade: given-SUBMISSIONS $(STAMP)
	@$(PYTHON) tools/classroom/grade.py "$(SUBMISSIONS)" --out "$(or $(OUT),grades.csv)" --chapters "$(CHAPTERS)" $(if $(JOBS),--jobs "$(JOBS)")

# Before anything is installed or run: is the variable there?
given-CHAPTERS given-OUT:
	@test -n "$($(@:given-%=%))" || { echo '$(@:given-%=%) is missing: make assignment CHAPTERS="02 03" OUT=handout' >&2; exit 2; }

given-SUBMISSIONS:
	@test -n "$(SUBMISSIONS)" || { echo 'SUBMISSIONS is missing: make grade SUBMISSIONS=folder OUT=grades.csv' >&2; exit 2; }

# A switch is yes or no (1 and 0 say the same); one without a value is as if it were not there.
switch-ALL switch-SOLUTIONS switch-NBGRADER:
	@case "$($(@:switch-%=%))" in ""|yes|no|1|0) ;; \
	  *) echo "$(@:switch-%=%)=$($(@:switch-%=%)) is neither yes nor no." >&2; exit 2;; esac

fuzz: $(STAMP)
	@$(PYTHON) tools/fuzz_grading.py

clean:
	rm -rf .venv .venv-lowest .pytest_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is younger than both files while the environment holds what they ask for.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@test -w . || { echo "You may not write in this folder, and make and JupyterLab must: copy it to one of yours."; exit 1; }
	@$(PYTHON) -c 'import pip; $(RECENT)' 2>/dev/null || { \
	  found=; for candidate in $(CANDIDATES); do \
	    if $$candidate -c '$(RECENT)' 2>/dev/null; then found=$$candidate; break; fi; \
	  done; \
	  test -n "$$found" || { echo "Python 3.11 or newer is needed, and none of $(CANDIDATES) is: install one from python.org."; exit 1; }; \
	  $$found -c 'import ensurepip, venv' 2>/dev/null || { echo "$$found lacks the module venv or ensurepip: install it (on Debian and Ubuntu: apt install python3-venv)."; exit 1; }; \
	  echo "Creating $(VENV) with $$($$found --version)"; \
	  $$found -m venv --clear $(VENV); }
	@echo "Installing into $(VENV), once; this takes a few minutes. README says how large it is, and how to make it smaller."
	@$(PYTHON) tools/install.py $(CONSTRAINTS)
	@touch $(STAMP)
