"""The command-line tool: the command ``onepass`` of a wheel, and ``python -m onepass`` anywhere."""

import os
import signal
import sys

from . import _devices, _onepass


def main() -> None:
    if sys.argv[1:2] == ["mask"]:
        from . import _mask_picture

        sys.exit(_mask_picture.main(sys.argv[2:]))
    if not hasattr(_onepass, "command"):
        print("onepass: this build does not have the command-line tool (ONEPASS_TOOLS is OFF)", file=sys.stderr)
        sys.exit(2)
    signal.signal(
        signal.SIGPIPE, signal.SIG_DFL
    )  # Python ignores it, and the tool would take that for its caller's wish
    _devices.find_nvrtc()
    sys.exit(_onepass.command([b"onepass", *map(os.fsencode, sys.argv[1:])]))


if __name__ == "__main__":
    main()
