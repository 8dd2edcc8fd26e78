"""`semfocus compare` for `accelerate launch`: the same options; with several processes they train each run together.

accelerate launch --config_file recipes/accelerate/one.yaml recipes/compare.py --preset quickstart --output runs/quickstart
"""

import sys

from hf_semfocus.cli.main import main

if __name__ == "__main__":
    main(["compare", *sys.argv[1:]])
