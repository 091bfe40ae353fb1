"""The process of one live run's learner: what apps experienced in, versions out. Run: python -m farfield.live."""

import sys
import time
from pathlib import Path

from farfield import training, wiring
from farfield.errors import FarfieldError
from farfield.launch.processes import OWN_FAULT, bind_to_parent


def main() -> None:
    """Learn for the run in a folder until it is finished or told to stop: python -m farfield.live FOLDER PARENT."""
    began = time.time()
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    bind_to_parent(parent)
    try:
        config = wiring.read_config(folder)
        home = str(folder.parent.parent)
        training.train(config, home=home, resume=True, watch=lambda row: None, say=_say, began=began)
    except FarfieldError as error:
        _say(str(error))
        sys.exit(OWN_FAULT)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
