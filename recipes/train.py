"""`semfocus train` for `accelerate launch`: the same options, one run on several processes.

accelerate launch --config_file recipes/accelerate/two.yaml recipes/train.py even_pairs --mask topk:5 --length 20 --layers 3 \
    --epochs 5 --output runs/two-processes
"""

import sys

from hf_semfocus.cli.main import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
