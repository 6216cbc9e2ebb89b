"""python -m samebits"""

import sys

try:
    from samebits.cli import main

    code = main()
except KeyboardInterrupt:  # while Python was still importing
    code = 130
sys.exit(code)
