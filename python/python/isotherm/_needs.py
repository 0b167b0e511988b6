"""Packages that only some calls need: imported when they are, and named where they are missing."""

import importlib
from typing import Any


def need(module: str, extra: str) -> Any:
    """The module of this name; `extra`: what of isotherm brings it along."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise
        message = f"this needs {package}, which is not installed: pip install 'isotherm[{extra}]'"
        raise ImportError(message, name=module) from error
