#!/usr/bin/env bash
# A stand-in's script: the package of this name from PyPI, and what it needs, in the environment's site-packages.
set -euo pipefail
unset PIP_NO_INDEX PIP_NO_DEPENDENCIES  # rattler-build sets these
/usr/bin/python3 -m venv venv
site=$(/usr/bin/python3 -c 'import sys; print("lib/python%d.%d/site-packages" % sys.version_info[:2])')
venv/bin/pip install --disable-pip-version-check --target "$PREFIX/$site" "$PKG_NAME"
