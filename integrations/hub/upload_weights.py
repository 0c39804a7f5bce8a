"""Publish trained weights on the Hugging Face Hub: python upload_weights.py runs/mine/weights OWNER/NAME [--dry-run]"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import hyperfuse

CARD = """---
library_name: hyperfuse
license: apache-2.0
tags: [hyperspectral, image-fusion, remote-sensing]
---
# {name}

{network}, for hyperfuse.

    hyperfuse fuse hsi.tif msi.tif -o fused.tif --weights hf://{name}

Training record:

```json
{record}
```
"""


def model_card(folder: Path, name: str) -> str:
    """The card of weights that load; broken ones raise WeightsError."""
    network = hyperfuse.load_model(folder)
    record = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("provenance", {})
    return CARD.format(name=name, network=repr(network).splitlines()[0], record=json.dumps(record, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", help="OWNER/NAME on the Hub")
    parser.add_argument("--private", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="check the weights and print the card")
    arguments = parser.parse_args()
    try:
        card = model_card(arguments.folder, arguments.name)
    except hyperfuse.HyperfuseError as error:
        parser.error(str(error))
    if arguments.dry_run:
        print(card)
        return
    from huggingface_hub import HfApi

    hub = HfApi()
    hub.create_repo(arguments.name, private=arguments.private, exist_ok=True)
    hub.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=arguments.name)
    hub.upload_folder(
        folder_path=arguments.folder, repo_id=arguments.name, allow_patterns=["config.json", "*.safetensors"]
    )
    print(f"hf://{arguments.name}")


if __name__ == "__main__":
    main()
