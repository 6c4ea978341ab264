import sys

from gpufix.cli import main

sys.exit(main())
