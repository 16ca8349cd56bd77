# `make demo` and `make test` set up all they need; a second run finds it done.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
UV := UV_COMPILE_BYTECODE=1 UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(VENV)/bin/uv pip install --quiet -p $(VENV)/bin/python
TORCH := 2.13.0

.PHONY: demo test check lock clean

demo: $(READY)
	$(VENV)/bin/specwatch up -c engine/demo/specwatch.yaml

# Two processes share the cores with servers, engines and browsers, so that some limit may be passed by chance: what
# fails is named, and judged by a second run in which it has the machine to itself.
test: $(READY) check
	@. tests/support/system-packages.sh
	$(VENV)/bin/python -m pytest -n 2 --no-loadscope-reorder || \
	  { test $$? = 1 && $(VENV)/bin/python -m pytest --last-failed --last-failed-no-failures none; }

# The checks that need no server: style, types, room boundaries.
check: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# The +cpu build of torch is a quarter of the default one, but not every index offers it. The wheel of urllib3-future,
# which grafana-client brings, takes the place of everybody's urllib3; built with that variable it does not.
$(READY): .requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else "Specwatch needs Python 3.11 to 3.13, and %s is %d.%d: run make PYTHON=/path/to/python3.12" % (sys.executable, *v))'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet uv==0.13.9
	$(UV) "torch==$(TORCH)+cpu" 2>/dev/null || $(UV) "torch==$(TORCH)"
	URLLIB3_NO_OVERRIDE=1 $(UV) --no-deps --no-binary urllib3-future -r .requirements.lock
	$(UV) --no-deps --no-build-isolation -e .
	touch $@

# torchvision, torchaudio, torchcodec and triton serve no text on a CPU, and their
# default builds do not load beside the +cpu torch. six is needed on Python 3.12 and later.
lock: $(READY)
	printf '%s ; sys_platform == "never"\n' torchvision torchaudio torchcodec triton > $(VENV)/override.txt
	echo six | $(VENV)/bin/uv pip compile --quiet --upgrade --no-annotate --no-header --python-version 3.11 \
	  --override $(VENV)/override.txt --find-links "$(PIP_FIND_LINKS)" \
	  --extra engine-cpu --extra grafana --extra similarity --extra test pyproject.toml - | grep -v '^torch==' > .requirements.lock

clean:
	rm -rf $(VENV) .run build *.egg-info
