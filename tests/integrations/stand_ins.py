"""Modules that stand in for what the real files of a project import and a test does not need.

A name that is not in the folder of real files is an empty class, if it begins with a capital, or else a mock.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import pathlib
import sys
import types
from unittest import mock

HOOKS = pathlib.Path(os.environ["NCCLFLOW_HOOKS"])
LOG = os.environ["NCCLFLOW_TEST_LOG"]
EXAMPLES = pathlib.Path(__file__).parents[2] / "dist/integrations"


class AnyClass(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)


def _name_of(module, name):
    if name.startswith("__"):
        raise AttributeError(name)
    full = f"{module.__name__}.{name}"
    if full in sys.modules or is_real(full):
        return importlib.import_module(full)
    found = AnyClass(name, (), {}) if name[0].isupper() else mock.MagicMock(name=name)
    setattr(module, name, found)
    return found


def is_real(name):
    place = HOOKS.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for the modules of these packages that are not among the real files."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] not in self.packages:
            return None
        place = HOOKS.joinpath(*name.split("."))
        if is_real(name):
            return importlib.machinery.PathFinder.find_spec(name, [str(place.parent)])
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec

    def exec_module(self, module):
        module.__getattr__ = lambda name: _name_of(module, name)


def use(*packages):
    """From here on these packages are the real files, and stand-ins for the others."""
    sys.meta_path.insert(0, Finder(packages))


def module(name, **names):
    """Makes a module that has these names, and others as stand-ins."""
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(names, __getattr__=lambda name: _name_of(made, name))


def note(line):
    """Writes a line to the log in which what stands in for ncclflow writes, too."""
    with open(LOG, "a") as file:
        file.write(line + "\n")


def installed():
    """As `pip install` of the examples' folder: their entry points are found."""
    import tomllib

    folder = pathlib.Path.cwd() / "installed"
    entries = tomllib.loads((EXAMPLES / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "ncclflow_integrations-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ncclflow-integrations\nVersion: 1\n")
    lines = [f"[{group}]\n{name} = {value}\n" for group, of in entries.items() for name, value in of.items()]
    (info / "entry_points.txt").write_text("".join(lines))
    sys.path.insert(0, str(folder))
